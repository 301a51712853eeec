"""The validation images that trained networks are scored on: as many as asked for, where there are as many."""

from __future__ import annotations

import hashlib

import numpy as np

from labkit.data import DataSet, Split, open_data
from labkit.errors import DataError

_HASHED_AT_ONCE = 512  # images: those of a whole set may be more than memory holds


def scoring_split(data: DataSet, images: int) -> Split:
    """The first `images` validation images; all of them, where a set that cannot be made longer has fewer.

    synthetic32 is drawn image by image, so a longer split is drawn and cached once; it begins with the images of the
    set's own. DataError where it does not, because the set was drawn with another seed than reports use.
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
    """SHA-256 of the images and the labels, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for first in range(0, len(split), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(split.images[first : first + _HASHED_AT_ONCE]).data)
    digest.update(np.ascontiguousarray(split.labels, dtype="<i2").tobytes())
    return digest.hexdigest()
