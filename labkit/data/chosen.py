"""The images and documents that a user chooses for a report: DATA= and REUTERS=."""

from __future__ import annotations

import os
from collections.abc import Sequence

from labkit.data import DataSet, holds_validation_set, open_data, open_documents
from labkit.data.reuters import VARIABLE as REUTERS_VARIABLE
from labkit.errors import UserError
from labkit.registry import STUDIES, check_scale

SCORING = ("08_quantization",)  # the studies for which a validation set alone is enough
# Training and validation images of synthetic32 at each scale. Other data sets are used whole.
SYNTHETIC_IMAGES = {"smoke": (2_000, 500), "quick": (50_000, 10_000), "full": (1_281_167, 50_000)}


def data_at_scale(name_or_path: str, scale: str) -> DataSet:
    """Return the images of a report: the user's folder, or an embedded set in the scale's size.

    Raise DataError or UserError for a folder that cannot be used.
    """
    if name_or_path in ("", "synthetic32"):
        train, val = SYNTHETIC_IMAGES[check_scale(scale)]
        return open_data("synthetic32", train_images=train, val_images=val)
    try:
        return open_data(name_or_path)
    except (OSError, RuntimeError) as error:  # a name that is too long, another user's folder, no permission
        raise UserError(
            f"DATA={name_or_path[:200]} can't be read: {error}. Name a folder that you can read."
        ) from error


def documents_of_user() -> DataSet:
    """Return the documents that REUTERS= names, else drawn ones. Raise UserError or DataError for an unusable file."""
    return open_documents(os.environ.get(REUTERS_VARIABLE))


def check_use(name_or_path: str, studies: Sequence[str]) -> None:
    """Raise UserError if one of the studies cannot use the report's images: no study trains on a validation set.

    The check comes before images are read, which may take minutes.
    """
    training = [study for study in studies if study not in SCORING]
    try:
        if not training or not holds_validation_set(name_or_path):
            return
    except OSError:
        return  # opening the folder reports the reason
    raise UserError(
        f"DATA={name_or_path[:200]} holds ImageNet's validation set, which is no training set: {', '.join(training)} "
        f"can't use it, only {', '.join(SCORING)} can (STUDY={STUDIES[SCORING[0]].name})."
    )
