"""`digits`: scikit-learn's handwritten digits, 1,797 real images that need no download.

The images are the test part of E. Alpaydin & C. Kaynak's set (UCI, 1998): 8x8 pixels with 17 levels of grey. Each
pixel becomes a 4x4 block (nearest neighbour, exact). Levels are scaled to 0..255. The three colour channels are equal.
"""

from __future__ import annotations

import numpy as np

from labkit.data.dataset import Chunks, Images, Labels, Source, SplitName
from labkit.data.random_bits import check_seed, permutation
from labkit.errors import UserError

DIGITS_VERSION = 1  # part of the cache token: raise it with any change to the images below
CLASSES = 10
TRAIN_IMAGES = 1500
VAL_IMAGES = 297
_LEVELS = 16  # the brightest level of the original
_BLOCK = 4


def images_and_labels(split: SplitName, *, seed: int = 0) -> tuple[Images, Labels]:
    """Return 1,500 training or 297 validation images, uint8 (n, 3, 32, 32), and their labels int16 (n,), 0..9.

    `seed` decides the split of each image and the order. Raise UserError for a seed outside 0 .. 2**64 - 1.
    """
    check_seed("digits", seed)
    try:  # here, because scikit-learn takes a second to import and only this set needs it
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise UserError("the images of `digits` are part of scikit-learn: pip install scikit-learn.") from error

    levels, labels = load_digits(return_X_y=True)
    order = permutation(len(labels), key=(seed, DIGITS_VERSION))
    chosen = order[:TRAIN_IMAGES] if split == "train" else order[TRAIN_IMAGES:]
    grey = ((levels[chosen].astype(np.int64) * 255 + _LEVELS // 2) // _LEVELS).astype(np.uint8).reshape(-1, 1, 8, 8)
    large = grey.repeat(_BLOCK, axis=2).repeat(_BLOCK, axis=3)
    return np.repeat(large, 3, axis=1), labels[chosen].astype(np.int16)


def source(*, train_images: int | None, val_images: int | None, seed: int) -> Source:
    """Return the cache's source of the set. A count limits its split to the first images."""
    counts = {
        "train": min(train_images or TRAIN_IMAGES, TRAIN_IMAGES),
        "val": min(val_images or VAL_IMAGES, VAL_IMAGES),
    }

    def chunks(split: SplitName) -> Chunks:
        images, labels = images_and_labels(split, seed=seed)
        yield images[: counts[split]], labels[: counts[split]]

    def describe(train: int, val: int) -> str:
        return (
            f"digits (version {DIGITS_VERSION}, seed {seed}): {train:,} training and {val:,} validation images of "
            "scikit-learn's handwritten digits scaled from 8x8 to 32x32; accuracies on it are not ImageNet accuracies."
        )

    token = f"v{DIGITS_VERSION}-s{seed}-{counts['train']}-{counts['val']}"
    return Source("digits", token, CLASSES, chunks, describe)
