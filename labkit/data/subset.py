"""Draw a smaller data set from a cached one. The subset is a cache entry too, with a checksum and memory maps."""

from __future__ import annotations

import hashlib

import numpy as np

from labkit.data.cache import cached
from labkit.data.dataset import SPLITS, Chunks, DataSet, Source, SplitName
from labkit.data.draws import check_seed, permutation

SUBSET_VERSION = 1  # part of the cache token: raise it with any change to the draw
_CHUNK_BYTES = 8192 * 3 * 32 * 32  # 25 MB


def subset(whole: DataSet, *, train_images: int | None, val_images: int | None, seed: int) -> DataSet:
    """Return a set with at most these numbers of images, drawn without replacement with `seed`, in original order.

    Images are drawn because an archive may be ordered by class. None, or a number not below the size of a split, keeps
    the split whole. If both splits stay whole, `whole` itself is returned. The draw of n images contains every smaller
    draw. Raise UserError for a seed outside 0 .. 2**64 - 1.
    """
    splits = {"train": whole.train, "val": whole.val}
    wanted = {"train": train_images, "val": val_images}
    counts = {split: min(wanted[split] or len(splits[split]), len(splits[split])) for split in SPLITS}
    if all(counts[split] == len(splits[split]) for split in SPLITS):
        return whole
    check_seed("a subset", seed)

    def chunks(split: SplitName) -> Chunks:
        images, labels = splits[split].images, splits[split].labels
        chosen = np.sort(permutation(len(labels), key=(seed, SPLITS.index(split)))[: counts[split]])
        at_once = max(1, _CHUNK_BYTES // images[0].size)
        for start in range(0, len(chosen), at_once):
            part = chosen[start : start + at_once]
            yield images[part], labels[part]

    def describe(train: int, val: int) -> str:
        return f"{train:,} training and {val:,} validation images drawn with seed {seed} from: {whole.description}"

    facts = f"v{SUBSET_VERSION} {whole.checksum} {counts['train']} {counts['val']} {seed}"
    token = "subset-" + hashlib.sha256(facts.encode()).hexdigest()[:16]
    drawn = Source(
        whole.name,
        token,
        whole.classes,
        chunks,
        describe,
        edge_px=whole.edge_px,
        normalisation=(whole.mean, whole.std) if whole.validation_only else None,
    )
    return cached(drawn)
