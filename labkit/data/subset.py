"""Draw a smaller data set, in memory, from a cached one."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from labkit.data.dataset import DataSet, Split
from labkit.data.random_bits import check_seed, permutation


def subset(whole: DataSet, *, train_images: int | None, val_images: int | None, seed: int) -> DataSet:
    """Return a set with at most these numbers of images, drawn without replacement with `seed`, in original order.

    Images are drawn because an archive may be ordered by class. None, or a number not below the size of a split, keeps
    the split whole. If both splits stay whole, `whole` itself is returned. The draw of n images contains every smaller
    draw. Mean and standard deviation remain those of the whole set. Raise UserError for a seed outside 0 .. 2**64 - 1.
    """
    check_seed("a subset", seed)

    def drawn(split: Split, count: int | None, number: int) -> Split:
        if count is None or count >= len(split):
            return split
        chosen = np.sort(permutation(len(split), key=(seed, number))[:count])
        return Split(split.images[chosen], split.labels[chosen])

    train, val = drawn(whole.train, train_images, 0), drawn(whole.val, val_images, 1)
    if train is whole.train and val is whole.val:
        return whole
    facts = f"{whole.checksum} {len(train)} {len(val)} {seed}"
    return replace(
        whole,
        train=train,
        val=val,
        checksum=hashlib.sha256(facts.encode()).hexdigest(),
        description=f"{len(train):,} training and {len(val):,} validation images drawn with seed {seed} from: "
        f"{whole.description}",
    )
