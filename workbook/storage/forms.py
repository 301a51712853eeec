"""The forms in which a set of images is stored, and how a whole form is told from a half-written one.

    <folder>/jpeg/      train/<class>/<name>.JPEG, class folders like ImageNet's
             shards/    000000.tar …, WebDataset archives with <key>.jpg and <key>.cls
             tfrecord/  train-00000-of-00016 …, records of tf.train.Example
             cache/     images.npy, uint8 (N, 3, 256, 256), and labels.npy, int64 (N,)

Each form has an `index.json`, which is written last. Files without it are half-written. The JPEG files may also lie in
a folder of the user, which the index then names: nothing is written there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, PositiveInt

from labkit.data.identity import JPEG_ENDINGS
from labkit.errors import DataError, UserError, one_of
from labkit.files import rewriting, users_path
from workbook.hardware.limits import usable_threads
from workbook.storage.page_cache import sync_file_system

FORMS = ("jpeg", "shards", "tfrecord", "cache")
INDEX = "index.json"


class Sample(NamedTuple):
    """One image file: its path relative to the set's folder, its class, and its size."""

    path: str
    label: int
    file_bytes: int


class Index(BaseModel):
    """Contents of index.json. `StoredSet` explains the fields."""

    format: Literal[1] = 1
    form: str
    classes: PositiveInt
    images: PositiveInt
    checksum: str
    files: list[tuple[str, int]] = []  # name and size; the JPEG form has `samples` instead
    samples: list[Sample] = []
    root: str = ""  # the user's folder that holds the JPEG files
    changed_ns: dict[str, int] = {}  # when a file was added to, renamed in or removed from a folder of JPEG files


@dataclass(frozen=True, kw_only=True)
class StoredSet:
    """A set of images on disk in one form.

    `checksum` is of the names, labels and sizes of the set's JPEG files, so all forms of a set have the same one.
    `samples` are those files, relative to `folder`; other forms have none.
    """

    folder: Path
    form: str
    files: tuple[Path, ...]
    images: int
    classes: int
    file_bytes: int
    samples: tuple[Sample, ...]
    checksum: str


def open_stored(folder: str | Path, form: str) -> StoredSet:
    """Return one form of the set in `folder`.

    Raise UserError for an unknown form, one that is missing or half-written, and one whose files have changed.
    """
    one_of("form", form, FORMS)
    here = users_path(folder).absolute()
    index = read_index(here, form)
    home = Path(index.root) if index.root else here / form
    try:
        changed = _changed(home, index)
    except OSError as error:  # such as a name that is too long
        raise UserError(f"{here / form / INDEX} names files that can't be read: {error.strerror}.") from error
    if changed:
        raise UserError(f"{changed} is not as {here / form / INDEX} describes it; make the set again.")
    sizes = index.files or [(sample.path, sample.file_bytes) for sample in index.samples]
    return StoredSet(
        folder=home,
        form=form,
        files=tuple(home / name for name, _ in sizes),
        images=index.images,
        classes=index.classes,
        file_bytes=sum(size for _, size in sizes),
        samples=tuple(index.samples),
        checksum=index.checksum,
    )


def read_index(folder: Path, form: str) -> Index:
    """Return the index of one form of the set in `folder`. Raise UserError if it is missing or damaged."""
    file = folder / form / INDEX
    try:
        index = Index.model_validate_json(file.read_bytes())
        if index.form != form or not (index.files or index.samples):
            raise ValueError(f"it is not the index of the form {form}")
        names = [*(name for name, _ in index.files), *(sample.path for sample in index.samples), *index.changed_ns]
        if wrong := next((name for name in names if {"", ".."} & set(name.split("/"))), None):  # not below the folder
            raise ValueError(f"{wrong[:80]!r} is no file of the set")
        # WebDataset runs what follows `pipe:` in a relative path.
        if index.root and not Path(index.root).is_absolute():
            raise ValueError(f"{index.root[:80]!r} is no absolute path")
    except FileNotFoundError as error:
        whole = [name for name in FORMS if (folder / name / INDEX).is_file()]
        raise UserError(
            f"{folder} holds no whole {form} form; whole forms there: {', '.join(whole) or 'none'}. "
            f"Make it with workbook.storage.make_set."
        ) from error
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{file} is no valid index ({reason}); make the set again, which keeps whole files.") from error
    return index


def write_index(folder: Path, index: Index) -> None:
    """Write the index of a form, the mark that it is whole, after everything else of its file system."""
    sync_file_system(folder)
    with rewriting(folder / index.form / INDEX) as file:
        file.write(index.model_dump_json(exclude_defaults=True).encode())


def changed_ns(root: Path, folders: Iterable[str]) -> dict[str, int]:
    """Return when each folder below `root` last changed, in ns."""
    return {name: (root / name).stat().st_mtime_ns for name in folders}


def changed_files(home: Path, files: Iterable[tuple[str, int]]) -> list[Path]:
    """Return the files below `home` that are missing or have another size than given."""
    return [home / name for name, size in files if not (home / name).is_file() or (home / name).stat().st_size != size]


def _changed(home: Path, index: Index) -> Path | None:
    """Return a file or folder that differs from the index.

    The JPEG form has up to a million files. Its folders tell that a file was added, renamed or removed.
    """
    for path in changed_files(home, index.files):
        return path
    for name, time_ns in index.changed_ns.items():
        if not (home / name).is_dir() or (home / name).stat().st_mtime_ns != time_ns:
            return home / name
    return None


def checksum_of(samples: Sequence[Sample]) -> str:
    """Return 12 hex digits over the names, labels and sizes of a set's files."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.path}\t{sample.label}\t{sample.file_bytes}\n".encode())
    return digest.hexdigest()[:12]


LAYOUT = "the layout is train/<class>/*.JPEG, one folder of images per class"


def scan(root: Path, images: int | None = None) -> Index:
    """Return the index of a user's folder. A class is the position of its folder's name in sorted order.

    With `images`, it holds so many of the files, evenly over their sorted names; all if there are fewer.

    Raise DataError for a folder of another layout, and one without a readable image.
    """
    train = root / "train"
    try:
        classes = sorted(entry.name for entry in train.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        folders = [f"train/{name}" for name in classes]
        changed = changed_ns(root, ["train", *folders])  # before the scan, so that a later change is seen
        with ThreadPoolExecutor(usable_threads()) as threads:
            files_of_classes = list(threads.map(lambda name: _scan_class(root, name), folders))
    except OSError as error:
        raise DataError(f"{error.filename or train} can't be read ({error.strerror}); {LAYOUT}.") from error
    samples = [Sample(path, label, size) for label, files in enumerate(files_of_classes) for path, size in files]
    if images is not None and images < len(samples):
        samples = [samples[place * len(samples) // images] for place in range(images)]
    if not samples:
        raise DataError(f"{train} holds no JPEG file that can be read; {LAYOUT}.")
    return Index(
        form="jpeg",
        classes=len(classes),
        images=len(samples),
        checksum=checksum_of(samples),
        samples=samples,
        root=str(root),
        changed_ns=changed,
    )


def _scan_class(root: Path, folder: str) -> list[tuple[str, int]]:
    """Return path and size of the image files of a class, without empty ones and links to nothing.

    Contents are not read, which would take hours for ImageNet: readers count images that can't be read or decoded.
    """
    with os.scandir(root / folder) as entries:
        images = [
            entry for entry in entries if entry.name.lower().endswith(JPEG_ENDINGS) and not entry.name.startswith(".")
        ]
        files = [(f"{folder}/{image.name}", image.stat().st_size) for image in images if image.is_file()]
    return sorted((path, size) for path, size in files if size)
