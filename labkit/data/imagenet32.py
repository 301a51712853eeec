"""Read ImageNet32, ImageNet scaled to 32x32 pixels (Chrabaszcz, Loshchilov & Hutter 2017, arXiv:1707.08819).

Both published forms are read from one folder: pickled batches (`train_data_batch_1` .. `_10`, `val_data`), or the same
batches as `.npz` files. Each batch holds `data`, uint8 (N, 3072) as R, G and B planes, and `labels`, 1..1000 in the
order of `map_clsloc.txt`. One batch is in memory at a time, 0.4 GB for the published archive.
"""

from __future__ import annotations

import hashlib
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from labkit.data import ilsvrc2012
from labkit.data.dataset import IMAGE_SHAPE, SPLITS, Chunks, Images, Labels, Source, SplitName
from labkit.data.npy import read_member
from labkit.data.restricted import Refused, load_plain
from labkit.errors import DataError
from labkit.files import users_path

Form: TypeAlias = Literal["npz", "pickle"]

CLASSES = 1000
PUBLISHED_IMAGES = {"train": 1_281_167, "val": 50_000}
BATCH_NAMES: dict[SplitName, list[str]] = {
    "train": [f"train_data_batch_{number}" for number in range(1, 11)],
    "val": ["val_data"],
}
_BATCHES = 11
LARGEST_BYTES = 2**30  # of an unpacked part of an archive; the published ones have 0.4 GB
LAYOUT = "train_data_batch_1 to train_data_batch_10 and val_data, all pickled or all with the ending .npz"
# If both forms are complete, the .npz form is read, because a checksum protects each of its files.
_SUFFIX: dict[Form, str] = {"npz": ".npz", "pickle": ""}


def archive_files(path: str | Path) -> tuple[Form, dict[SplitName, list[Path]]]:
    """Return the form of an archive and its files by split, in reading order. Raise DataError for missing files."""
    folder = users_path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give the folder that holds the ImageNet32 batches.")
    begun = []
    for form, suffix in _SUFFIX.items():
        files = {split: [folder / f"{name}{suffix}" for name in BATCH_NAMES[split]] for split in SPLITS}
        absent = [file.name for split in SPLITS for file in files[split] if not file.is_file()]
        if not absent:
            return form, files
        if len(absent) < _BATCHES:
            begun.append(f"the {form} form lacks {', '.join(absent)}")
    if begun:
        raise DataError(f"{folder} is incomplete: {'; '.join(begun)}. One form must be complete in this folder.")
    raise DataError(f"{folder} holds no ImageNet32 batch; expected: {LAYOUT}; or {ilsvrc2012.LAYOUT}.")


def _load(file: Path, form: Form) -> dict[str, Any]:
    """Return the `data` and `labels` of one batch file, unchecked."""
    try:
        if form == "pickle":
            with file.open("rb") as stream:
                return load_plain(stream, size=file.stat().st_size)
        with file.open("rb") as stream:
            if not zipfile.is_zipfile(file) and stream.read(2) not in (b"PK", b""):
                raise ValueError("it is no archive")
        with zipfile.ZipFile(file) as archive:
            names = [key for key in ("data", "labels") if f"{key}.npy" in archive.namelist()]
            return {key: read_member(archive, f"{key}.npy", LARGEST_BYTES) for key in names}
    except Refused as refusal:
        raise DataError(
            f"{file} is refused: {refusal}; only NumPy arrays, lists, numbers and strings are allowed; "
            "nothing of it was executed."
        ) from refusal
    except (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{file} cannot be read, it is truncated or damaged ({error}); fetch it again.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror or error}).") from error
    except Exception as error:  # NumPy raises nearly anything for a damaged or hostile member
        raise DataError(
            f"{file} is refused: it is not an .npz archive of plain number arrays; nothing of it was executed."
        ) from error


def _check_images(file: Path, data: object) -> Images:
    """Return `data` as images (n, 3, 32, 32). Raise DataError for another type or shape."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        kind = data.dtype if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{file} has 'data' of type {kind} where uint8 is expected.")
    if data.ndim != 2 or data.shape[1] != np.prod(IMAGE_SHAPE):
        raise DataError(f"{file} has 'data' of shape {data.shape} where (N, 3072), 32x32 in three planes, is expected.")
    return data.reshape(-1, *IMAGE_SHAPE)


def _check_labels(file: Path, labels: object, images: int) -> Labels:
    """Return `labels` as int64 (n,), 0..999. Raise DataError for other types, counts or values."""
    try:  # a list of the same nested list again and again would fill the memory
        plain = isinstance(labels, np.ndarray) or (isinstance(labels, list) and all(type(n) is int for n in labels))
        array = np.asarray(labels if plain else None)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(f"{file} has 'labels' that are not a list of integers.")
    if array.size != images:
        raise DataError(f"{file} has {images:,} images and {array.size:,} labels; the counts must be equal.")
    if array.size and not (array.min() >= 1 and array.max() <= CLASSES):
        problem = f"labels must be 1..{CLASSES}, but are {array.min()}..{array.max()}"
        raise DataError(f"{file}: {problem}" + ("; add 1 to each label." if array.min() == 0 else "."))
    return array.astype(np.int64) - 1


def read_batches(path: str | Path, split: SplitName) -> Chunks:
    """Yield each batch of a split as images uint8 (n, 3, 32, 32) and labels int64 (n,), here 0..999; n may vary.

    Raise DataError, in one sentence, for an archive that is incomplete, truncated, of another shape or type, has labels
    outside 1..1000, or names anything but plain arrays.
    """
    form, files = archive_files(path)
    for file in files[split]:
        batch = _load(file, form)
        for key in ("data", "labels"):
            if key not in batch:
                raise DataError(f"{file} has no {key!r}.")
        images = _check_images(file, batch.pop("data"))
        labels = _check_labels(file, batch.pop("labels"), len(images))
        yield images, labels
        del images, labels  # free this batch before the next is read


def describe(form: str, train_images: int, val_images: int) -> str:
    """Return one sentence that describes an archive with these totals."""
    published = {"train": train_images, "val": val_images} == PUBLISHED_IMAGES
    extent = "as published" if published else "a subset of the published 1,281,167 and 50,000"
    return (
        f"ImageNet32 (Chrabaszcz et al. 2017) from a {form} archive: {train_images:,} training and {val_images:,} "
        f"validation images, {extent}."
    )


def inspect(path: str | Path) -> list[str]:
    """Read and check a whole archive, and return its contents in sentences. Raise the DataErrors of `read_batches`."""
    form, _ = archive_files(path)
    per_class = {split: np.zeros(CLASSES, dtype=np.int64) for split in SPLITS}
    for split in SPLITS:
        for _images, labels in read_batches(path, split):
            per_class[split] += np.bincount(labels, minlength=CLASSES)
            del _images
    train_images, val_images = (int(per_class[split].sum()) for split in SPLITS)
    if not train_images or not val_images:
        raise DataError(f"{path} holds {train_images:,} training and {val_images:,} validation images; both need some.")
    is_trained = per_class["train"] > 0
    untrained = int(((per_class["val"] > 0) & ~is_trained).sum())
    classes = f"{is_trained.sum():,} of {CLASSES:,} classes occur in training."
    more = [f"{untrained:,} classes occur in validation but not in training."] if untrained else []
    return [describe(form, train_images, val_images), classes, *more]


def source(path: str | Path) -> Source:
    """Return the cache's source of an archive. Its token depends on each file's path, size and modification time."""
    form, files = archive_files(path)
    folder = users_path(path).resolve()
    stamps = [str(folder)]
    for file in (file for split in SPLITS for file in files[split]):
        status = file.stat()
        stamps.append(f"{file.name} {status.st_size} {status.st_mtime_ns}")
    token = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return Source(
        name="imagenet32",
        token=token,
        classes=CLASSES,
        chunks=lambda split: read_batches(folder, split),
        describe=lambda train, val: describe(form, train, val),
    )
