"""The images and documents that a user chooses for a report: DATA= and REUTERS=, and images in files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from labkit.data import DataSet, Identity, cache_dir, identify, inspect, open_data
from labkit.data.identity import Role
from labkit.errors import DataError, UserError
from workbook.errors import Unsupported
from workbook.registry import OF_ALL, STUDIES, check_scale
from workbook.reuters import open_documents
from workbook.storage import FORMS, StoredSet, make_from_folder, make_set, open_stored
from workbook.storage.make import Progress
from workbook.storage.pack import why_not_made

SCORING = ("08_quantization",)  # the studies for which a validation set alone is enough
READING = ("12_data_pipeline",)  # the studies that read the files of training images themselves
# Training and validation images of synthetic32 at each scale. Other data sets are used whole.
SYNTHETIC_IMAGES = {"smoke": (2_000, 500), "quick": (50_000, 10_000), "full": (1_281_167, 50_000)}

_TAKES: dict[str, tuple[Role, str]] = {  # what a study takes beside training and validation images of 32 px
    **dict.fromkeys(SCORING, ("validation", "validation images of ImageNet")),
    **dict.fromkeys(READING, ("files", "training images in files")),
}

DRAWN = "drawn_jpegs"  # name of the stored sets that labkit draws
DRAWN_CLASSES, IMAGES_OF_CLASS = 1_000, 4  # most classes of a drawn set, and the fewest images of each


def data_at_scale(name_or_path: str, scale: str) -> DataSet:
    """Return the images of a report: the user's folder, or an embedded set in the scale's size.

    Raise DataError or UserError for a folder that cannot be used.
    """
    if name_or_path in ("", "synthetic32"):
        train, val = SYNTHETIC_IMAGES[check_scale(scale)]
        return open_data("synthetic32", train_images=train, val_images=val)
    return open_data(name_or_path)


def stored_set(
    name_or_path: str, images: int, *, forms: Sequence[str] = FORMS, progress: Progress | None = None
) -> tuple[str, dict[str, StoredSet]]:
    """Return the name (a trial's `data`) and the forms of a stored set of `images`. Make forms that are missing.

    The images are the user's if the folder holds JPEG files in `train/<class>/` (all of them if there are fewer), else
    drawn ones, also beside studies that take a folder of another kind. The form `jpeg` is always there, and one that
    cannot be made here is left out. Raise UserError for a folder that the study cannot take, and the errors of
    `workbook.storage.make_set` and `make_from_folder`.
    """
    check_use(name_or_path, READING)
    wanted = [form for form in FORMS if form == "jpeg" or (form in forms and why_not_made(form) is None)]
    if part := identify(name_or_path).part("files"):
        return part.name, make_from_folder(part.folder, images=images, forms=wanted, progress=progress)
    folder = cache_dir() / f"stored-drawn-{images}"
    classes = min(DRAWN_CLASSES, max(1, images // IMAGES_OF_CLASS))
    return DRAWN, make_set(folder, images=images, classes=classes, forms=wanted, progress=progress)


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
    """Raise UserError if one of the studies cannot use the images that DATA= names.

    The check comes before images are read, which may take minutes.
    """
    identity = identify(name_or_path)
    reasons = {study: reason for study in studies if (reason := why_not_used(identity, study))}
    if not reasons:
        return
    can = [study for study in STUDIES if study not in OF_ALL and not why_not_used(identity, study)]
    only = f" Only {', '.join(can)} can (STUDY={','.join(STUDIES[study].name for study in can)})." if can else ""
    causes = " ".join(dict.fromkeys(reasons.values()))
    raise UserError(f"{', '.join(reasons)} can't use DATA={name_or_path}: {causes}{only}")


def why_not_used(identity: Identity, study: str) -> str:
    """Return why a study cannot use the images of DATA=, as sentences; an empty text if it can."""
    role, wanted = _TAKES.get(study, ("arrays", "training and validation images of 32 px, such as ImageNet32"))
    if identity.part("arrays") or identity.part(role):
        return ""
    usable = [part.words for part in identity.parts if not part.reason]
    own = next((part.reason for part in identity.parts if part.role == role), "")
    if own or not usable:
        return own or identity.why_none()
    reason = f"It holds {' and '.join(usable)}; the study takes {wanted}."
    return reason + (" Networks do not train on validation images." if identity.part("validation") else "")


def described(name_or_path: str) -> list[str]:
    """Return what DATA= names: its images, as `inspect` reads them, and which studies can use them.

    Raise UserError if no study can.
    """
    identity = identify(name_or_path)
    answers = [(why_not_used(identity, study), study) for study in STUDIES if study not in OF_ALL]
    if all(reason for reason, _ in answers):
        raise UserError(f"no study can use DATA={name_or_path}: {identity.why_none()}")
    said = inspect(identity)
    for reason, group in groupby(sorted(answers), key=lambda answer: answer[0]):
        said.append(f"{'no' if reason else 'yes'}: {', '.join(study for _, study in group)}. {reason}".strip())
    if identity.part("arrays"):
        said.append(f"{', '.join(READING)} reads JPEG files, and draws them itself without such files in DATA=.")
    return said
