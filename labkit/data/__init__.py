"""Open data sets, by name or from the user's files, as memory-mapped arrays.

Images come from a folder with ImageNet32 or ImageNet. Without such files, labkit draws images at random. This module
does not import the loaders, because they need torch.
"""

from __future__ import annotations

from pathlib import Path

from labkit.data import digits, synthetic
from labkit.data.cache import cache_dir, cached, open_by_checksum, subset
from labkit.data.dataset import ILSVRC2012, DataSet, Levels, Split
from labkit.data.identity import NAMES, OWN_JPEGS, Identity, Part, identify, inspect, refuse_address, source_of
from labkit.errors import UserError, check_whole

__all__ = [
    "ILSVRC2012",
    "NAMES",
    "OWN_JPEGS",
    "DataSet",
    "Identity",
    "Levels",
    "Part",
    "Split",
    "cache_dir",
    "identify",
    "inspect",
    "open_by_checksum",
    "open_data",
    "refuse_address",
]

SYNTHETIC_TRAIN_IMAGES = 50_000  # made in seconds, the first time
SYNTHETIC_VAL_IMAGES = 10_000


def open_data(
    name_or_path: str | Path | None = None,
    *,
    train_images: int | None = None,
    val_images: int | None = None,
    seed: int = 0,
) -> DataSet:
    """Return a data set from the cache. The first call writes the cache entry.

    `train` and `val` are read-only memory maps, or arrays of a limited folder: images uint8 (N, 3, edge, edge) and
    labels int16 (N,). `mean` and `std` are per channel, in units of 0..255. `name_or_path` is 'synthetic32' (also
    None and ''), 'digits' (needs scikit-learn), or a folder that holds ImageNet32 or ImageNet's validation images.
    `train_images` and `val_images` limit the splits. None takes all images, for synthetic32 50,000 and 10,000. A limit
    below the number of images in a folder takes a sample drawn with `seed`. The cache is LABKIT_CACHE, else `labkit`
    in XDG_CACHE_HOME, else `~/.cache/labkit`.

    Raise UserError for an unknown name, a count that is not positive, or a cache that cannot be written. Raise
    DataError for an archive that cannot be used.
    """
    if name_or_path is not None and not isinstance(name_or_path, (str, Path)):
        raise UserError(f"the data set is {name_or_path!r:.50}; use the name of a data set or a folder.")
    name_or_path = None if name_or_path is None else str(name_or_path)
    check_counts("images", train_images, val_images)
    check_whole("seed", seed, 0)
    if name_or_path in (None, "", "synthetic32"):
        train, val = train_images or SYNTHETIC_TRAIN_IMAGES, val_images or SYNTHETIC_VAL_IMAGES
        return cached(synthetic.source(train_images=train, val_images=val, seed=seed))
    if name_or_path == "digits":
        return cached(digits.source(train_images=train_images, val_images=val_images, seed=seed))
    assert name_or_path is not None
    whole = cached(source_of(identify(name_or_path)))
    return subset(whole, train_images=train_images, val_images=val_images, seed=seed)


def check_counts(samples: str, train: int | None, val: int | None) -> None:
    """Raise UserError for a count that is not positive. None stands for all samples."""
    for split, count in (("training", train), ("validation", val)):
        if count is not None:
            check_whole(f"the number of {split} {samples}", count)
