"""The validation images on which trained networks are scored: the requested number, if the set has as many."""

from __future__ import annotations

import hashlib

import numpy as np

from labkit.data import DataSet, Split, open_data
from labkit.errors import DataError

_HASHED_AT_ONCE = 512  # images; a whole set may exceed the memory


def scoring_split(data: DataSet, images: int) -> Split:
    """Return the first `images` validation images, or all images of a shorter set that cannot be extended.

    synthetic32 is drawn image by image. A longer split is therefore drawn and cached once, and begins with the images
    of the given set. Raise DataError if it does not, because the given set has another seed than reports use.
    """
    own = data.val
    if images > len(own) and data.name == "synthetic32":
        longer = open_data("synthetic32", train_images=1, val_images=images).val  # an entry needs a training image
        if not np.array_equal(longer.labels[: len(own)], own.labels) or not np.array_equal(
            longer.images[: len(own)], own.images
        ):
            raise DataError("the validation images of this synthetic32 are not the first of the longer split.")
        return longer
    return Split(own.images[:images], own.labels[:images])


def split_sha256(split: Split) -> str:
    """Return the SHA-256 of the images and the labels, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for first in range(0, len(split), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(split.images[first : first + _HASHED_AT_ONCE]).data)
    digest.update(np.ascontiguousarray(split.labels, dtype="<i2").tobytes())
    return digest.hexdigest()
