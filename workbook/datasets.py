"""The images and documents that a user chooses for a report: DATA= and REUTERS=, and images in files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from labkit.data import ILSVRC2012, NAMES, DataSet, cache_dir, holds_validation_set, open_data
from labkit.errors import DataError, UserError
from labkit.files import users_path
from workbook.errors import Unsupported
from workbook.registry import STUDIES, check_scale
from workbook.reuters import open_documents
from workbook.storage import FORMS, StoredSet, make_from_folder, make_set, open_stored
from workbook.storage.make import Progress
from workbook.storage.pack import why_not_made

SCORING = ("08_quantization",)  # the studies for which a validation set alone is enough
READING = ("12_data_pipeline",)  # the studies that read the files of training images themselves
# Training and validation images of synthetic32 at each scale. Other data sets are used whole.
SYNTHETIC_IMAGES = {"smoke": (2_000, 500), "quick": (50_000, 10_000), "full": (1_281_167, 50_000)}

DRAWN = "drawn_jpegs"  # name of the stored sets that labkit draws
OWN = "own_jpegs"  # name of a user's images, if they are not ImageNet's training images
DRAWN_CLASSES, IMAGES_OF_CLASS = 1_000, 4  # most classes of a drawn set, and the fewest images of each


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
        raise UserError(f"DATA={name_or_path} can't be read: {error}. Name a folder that you can read.") from error


def stored_set(
    name_or_path: str, images: int, *, forms: Sequence[str] = FORMS, progress: Progress | None = None
) -> tuple[str, dict[str, StoredSet]]:
    """Return the name (a trial's `data`) and the forms of a stored set of `images`. Make forms that are missing.

    The images are the user's if the folder holds JPEG files in `train/<class>/` (all of them if there are fewer), else
    drawn ones, also beside studies that take a folder of another kind. The form `jpeg` is always there, and one that
    cannot be made here is left out. Raise UserError for a folder that no study can take, and the errors of
    `workbook.storage.make_set` and `make_from_folder`.
    """
    wanted = [form for form in FORMS if form == "jpeg" or (form in forms and why_not_made(form) is None)]
    if holds_training_files(name_or_path):
        made = make_from_folder(name_or_path, images=images, forms=wanted, progress=progress)
        folders = {Path(sample.path).parent.name for sample in made["jpeg"].samples}
        return ILSVRC2012 if all(re.fullmatch(r"n\d{8}", name) for name in folders) else OWN, made
    if name_or_path not in ("", *NAMES):
        try:
            data_at_scale(name_or_path, "smoke")
        except (UserError, DataError) as error:
            raise UserError(f"DATA={name_or_path} has no train/<class>/*.JPEG for this study. {error}") from error
    folder = cache_dir() / f"stored-drawn-{images}"
    classes = min(DRAWN_CLASSES, max(1, images // IMAGES_OF_CLASS))
    return DRAWN, make_set(folder, images=images, classes=classes, forms=wanted, progress=progress)


def holds_training_files(name_or_path: str) -> bool:
    """Return whether DATA= names a folder with `train/`, whose files a study can read as they stand."""
    given = name_or_path not in ("", *NAMES)
    return given and os.path.isdir(users_path(name_or_path) / "train")  # noqa: PTH112 - False for a name too long


def stored_by_checksum(form: str, checksum: str) -> StoredSet:
    """Return the stored set with this content, as `open_by_checksum` does.

    Raise DataError if no whole one is there, and Unsupported if none can be made here.
    """
    for folder in sorted(cache_dir().glob("stored-*")):
        try:
            stored = open_stored(folder, form)
        except UserError:
            continue
        if stored.checksum == checksum:
            return stored
    if reason := why_not_made(form):
        raise Unsupported(reason)
    raise DataError(
        f"no whole {form} form in {cache_dir()} has the checksum {checksum}; make the set first, or set LABKIT_CACHE "
        "to the folder that holds it."
    )


def documents_of_user(file: Path | None) -> DataSet:
    """Return the documents of REUTERS=, drawn ones without it. Raise UserError or DataError for an unusable file."""
    return open_documents(None if file is None else str(file))


def check_use(name_or_path: str, studies: Sequence[str]) -> None:
    """Raise UserError if one of the studies cannot use the report's images: no study trains on a validation set.

    The check comes before images are read, which may take minutes.
    """
    training = [study for study in studies if study not in SCORING]
    if holds_training_files(name_or_path):
        training = [study for study in training if study not in READING]
    try:
        if not training or not holds_validation_set(name_or_path):
            return
    except OSError:
        return  # opening the folder reports the reason
    raise UserError(
        f"DATA={name_or_path} holds ImageNet's validation set, which is no training set: {', '.join(training)} "
        f"can't use it, only {', '.join(SCORING)} can (STUDY={STUDIES[SCORING[0]].name})."
    )
