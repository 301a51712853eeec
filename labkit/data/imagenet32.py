"""Read ImageNet32, ImageNet scaled to 32x32 pixels (Chrabaszcz, Loshchilov & Hutter 2017, arXiv:1707.08819).

The published forms are pickled batches (`train_data_batch_1` .. `_10`, `val_data`), and the same batches as `.npz`
files. Each batch holds `data`, uint8 (N, 3072) as R, G and B planes, and `labels`, 1..1000 in the order of
`map_clsloc.txt`. One batch is in memory at a time, 0.4 GB for the published archive. Hugging Face's form is Parquet:
files with `image` (a struct with `bytes`) and `label`, 0..999. Its labels are the classes in the order of their WordNet
ids, and those of the batches are in another order. A network that is trained on either form learns the same task.

The files may lie in the folder itself or up to two folders deeper, as programs that unpack archives leave them. The
first bytes of a file tell its form, whatever its ending.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.data.content import contents, what_is
from labkit.data.dataset import EDGE_PX, IMAGE_SHAPE, SPLITS, Chunks, Images, Labels, Source, SplitName
from labkit.data.ilsvrc2012 import decoded
from labkit.data.npy import read_member
from labkit.data.restricted_pickle import Refused, load_plain
from labkit.errors import DataError, UserError
from labkit.files import users_path

CLASSES = 1000
LAST_CLASSES = 900  # labels of ImageNet32 reach them; those of CIFAR-100 and Tiny ImageNet end far below
_PARQUET_FILE = re.compile(r"(train|val|validation)\b.*\.parquet")
_ROWS_AT_ONCE = 8192  # images decoded at once, 25 MB


def split_of_parquet(name: str) -> SplitName | None:
    """Return the split that a file's name begins with; None for another file."""
    match = _PARQUET_FILE.fullmatch(name)
    return None if match is None else "train" if match[1] == "train" else "val"


def read_parquet(files: Sequence[Path]) -> Chunks:
    """Yield the images of a split's files as uint8 (n, 3, 32, 32) and their labels int64 (n,), 0..999.

    Raise DataError for a file of another kind, other columns, images of another size or labels of another set. Raise
    UserError without pyarrow.
    """
    last = -1
    for file in files:
        try:
            for batch in _batches(file):
                labels = np.asarray(batch["label"])
                if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < CLASSES:
                    raise DataError(f"{file} has labels such as {labels[0]!r}; ImageNet32 has 0..{CLASSES - 1}.")
                last = max(last, int(labels.max()))
                yield np.stack([_pixels(image["bytes"]) for image in batch["image"]]), labels.astype(np.int64)
        except UserError:
            raise
        except Exception as error:  # pyarrow and Pillow raise nearly anything for a damaged file
            raise DataError(f"{file} is {what_is(file)}, and can't be read as ImageNet32 ({error}).") from error
    if last < LAST_CLASSES:
        raise DataError(f"the labels in {files[0].parent} go up to {last}; those of ImageNet32 go up to {CLASSES - 1}.")


def _batches(file: Path) -> Iterator[dict[str, list[Any]]]:
    try:  # here, because only this form needs it
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError("pyarrow reads Parquet files, and it is not installed: pip install pyarrow.") from error

    table = ParquetFile(file)
    if not {"image", "label"} <= set(table.schema_arrow.names):
        names = ", ".join(table.schema_arrow.names)
        raise DataError(f"{file} has the columns {names}; ImageNet32 has `image` and `label`.")
    yield from (batch.to_pydict() for batch in table.iter_batches(_ROWS_AT_ONCE, columns=["image", "label"]))


def _pixels(data: bytes) -> Images:
    image = decoded(data)
    if image.size != IMAGE_SHAPE[1:]:
        raise ValueError(f"its images have {image.size[0]} x {image.size[1]} pixels, not {EDGE_PX} x {EDGE_PX}")
    return np.asarray(image).transpose(2, 0, 1)


Form: TypeAlias = Literal["npz", "pickle", "parquet"]

PUBLISHED_IMAGES = {"train": 1_281_167, "val": 50_000}
BATCH_NAMES: dict[SplitName, list[str]] = {
    "train": [f"train_data_batch_{number}" for number in range(1, 11)],
    "val": ["val_data"],
}
_NAMES = [name for names in BATCH_NAMES.values() for name in names]
LARGEST_BYTES = 2**30  # of an unpacked part of an archive; the published ones have 0.4 GB
LAYOUT = "ImageNet32 (train_data_batch_1 to train_data_batch_10 and val_data, or Hugging Face's Parquet files)"
_BATCH = re.compile(r"(train_data_batch_(?:[1-9]|10)|val_data)(?:\.\w+)*")
_KINDS: dict[Form, tuple[str, ...]] = {"npz": ("an .npz archive", "a zip archive without"), "pickle": ("a pickle",)}
_SAFE = "nothing of it was executed"
_DEPTH, _FOLDERS = 2, 20  # folders below the given one, and folders of one level, in which batches are looked for


class Incomplete(DataError):  # noqa: N818 - an adjective
    """An archive that lacks files, or has files of another kind in their place."""


def archive_files(path: str | Path) -> tuple[Form, dict[SplitName, list[Path]]]:
    """Return the form of an archive and its files by split, in reading order.

    Raise DataError for a folder without ImageNet32, and for missing files, with what is there.
    """
    folder = users_path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give the folder that holds {LAYOUT}.")
    batches: dict[Form, dict[str, Path]] = {"npz": {}, "pickle": {}}
    others: list[Path] = []
    parquet: dict[SplitName, list[Path]] = {"train": [], "val": []}
    for file in _files(folder, _DEPTH):
        if match := _BATCH.fullmatch(file.name):
            if form := _form(file):
                batches[form].setdefault(match[1], file)
            else:
                others.append(file)
        elif split := split_of_parquet(file.name):
            parquet[split].append(file)
    # If both forms are complete, the .npz form is read, because a checksum protects each of its files.
    for form, files in batches.items():
        if len(files) == len(_NAMES):
            return form, {split: [files[name] for name in BATCH_NAMES[split]] for split in SPLITS}
    if all(parquet.values()):
        return "parquet", {split: sorted(files) for split, files in parquet.items()}
    fullest = max(batches, key=lambda form: len(batches[form]))
    others += [file for form, files in batches.items() if form != fullest for file in files.values()]
    absent = [name for name in _NAMES if name not in batches[fullest]]
    lacking = [f"the {fullest} form lacks {', '.join(absent)}"] if batches[fullest] else []
    lacking += [f"there are Parquet files of {split} alone" for split, files in parquet.items() if files]
    lacking += [f"{file.name} is {what_is(file)}" for file in others]
    if lacking:
        raise Incomplete(f"{folder} is incomplete: {'; '.join(lacking)}. One form must be complete.")
    raise DataError(f"{folder} holds no ImageNet32 batch; it holds {contents(folder)}.")


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files in a folder, then those in its first folders, down to this depth."""
    try:
        with os.scandir(folder) as entries:
            names = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError:
        return  # another user's folder
    yield from (folder / name for name, is_folder in names if not is_folder)
    if depth:
        for name in [name for name, is_folder in names if is_folder][:_FOLDERS]:
            yield from _files(folder / name, depth - 1)


def _form(file: Path) -> Form | None:
    """Return the form of a batch file by its content; None for another kind of file."""
    kind = what_is(file)
    if kind.startswith(_KINDS["npz"]):
        return "npz"
    return "pickle" if kind in ("a pickle", "a file of an unknown kind", "text") else None


def _load(file: Path, form: Form) -> dict[str, Any]:
    """Return the `data` and `labels` of one batch file, unchecked."""
    try:
        if form == "pickle":
            with file.open("rb") as stream:
                return load_plain(stream, size=file.stat().st_size)
        with zipfile.ZipFile(file) as archive:
            names = [key for key in ("data", "labels") if f"{key}.npy" in archive.namelist()]
            return {key: read_member(archive, f"{key}.npy", LARGEST_BYTES) for key in names}
    except Refused as refusal:
        allowed = "only NumPy arrays, lists, numbers and strings are allowed"
        raise DataError(f"{file} is refused: {refusal}; {allowed}; {_SAFE}.") from refusal
    except (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        if not (kind := what_is(file)).startswith(_KINDS[form]):
            raise DataError(f"{file} is {kind}, and {_KINDS[form][0]} is expected; {_SAFE}.") from error
        raise DataError(f"{file} is {kind}, truncated or damaged ({error}); fetch it again.") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror or error}).") from error
    except Exception as error:  # NumPy raises nearly anything for a damaged or hostile member
        raise DataError(f"{file} is refused: it is not an .npz archive of plain number arrays; {_SAFE}.") from error


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
    if form == "parquet":
        yield from read_parquet(files[split])
        return
    for file in files[split]:
        batch = _load(file, form)
        for key in ("data", "labels"):
            if key not in batch:
                there = f"a pickle of {', '.join(map(str, batch)) or 'nothing'}" if form == "pickle" else what_is(file)
                raise DataError(f"{file} has no {key!r}: it is {there}.")
        images = _check_images(file, batch.pop("data"))
        labels = _check_labels(file, batch.pop("labels"), len(images))
        yield images, labels
        del images, labels  # free this batch before the next is read


class _Labels:
    """The images of each class, counted while batches are read, and what is odd about them."""

    def __init__(self) -> None:
        self.counts: dict[SplitName, NDArray[np.int64]] = {}

    def read(self, path: str | Path, split: SplitName) -> Chunks:
        """Yield the batches of a split as `read_batches` does, and count their labels."""
        counts = self.counts[split] = np.zeros(CLASSES, dtype=np.int64)
        for images, labels in read_batches(path, split):
            counts += np.bincount(labels, minlength=CLASSES)
            yield images, labels
            del images, labels

    def doubt(self) -> str:
        """Return a sentence if labels may count from 0: then all are one too low, and no value tells it."""
        every = sum(self.counts.values(), np.zeros(CLASSES, dtype=np.int64))
        if every[-1] or not every[-2]:
            return ""
        return f" Labels go up to {CLASSES - 1}, and class {CLASSES:,} is missing: if they count from 0, add 1 to each."


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
    labels = _Labels()
    for split in SPLITS:
        for _images, _of_images in labels.read(path, split):
            del _images
    train_images, val_images = (int(labels.counts[split].sum()) for split in SPLITS)
    if not train_images or not val_images:
        raise DataError(f"{path} holds {train_images:,} training and {val_images:,} validation images; both need some.")
    is_trained = labels.counts["train"] > 0
    untrained = int(((labels.counts["val"] > 0) & ~is_trained).sum())
    classes = f"{is_trained.sum():,} of {CLASSES:,} classes occur in training."
    more = [f"{untrained:,} classes occur in validation but not in training."] if untrained else []
    return [describe(form, train_images, val_images) + labels.doubt(), classes, *more]


def source(path: str | Path) -> Source:
    """Return the cache's source of an archive. Its token depends on each file's path, size and modification time."""
    form, files = archive_files(path)
    given, labels = users_path(path), _Labels()
    stamps = [str(given.resolve())]
    for file in (file for split in SPLITS for file in files[split]):
        status = file.stat()
        stamps.append(f"{file.relative_to(given)} {status.st_size} {status.st_mtime_ns}")
    token = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return Source(
        name="imagenet32",
        token=token,
        classes=CLASSES,
        chunks=lambda split: labels.read(given.resolve(), split),
        describe=lambda train, val: describe(form, train, val) + labels.doubt(),
    )
