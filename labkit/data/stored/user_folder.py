"""The JPEG files of a user: `train/<class>/*.JPEG`, which are read as they stand and never written to."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit.data.stored.forms import Index, Sample, changed_ns, checksum_of
from labkit.errors import DataError
from labkit.hardware.cpu_limits import usable_threads

ENDINGS = (".jpeg", ".jpg")
LAYOUT = "the layout is train/<class>/*.JPEG, one folder of images per class"


def scan(root: Path, images: int | None = None) -> Index:
    """Return the index of a user's folder. A class is the position of its folder's name in sorted order.

    With `images`, it holds so many of the files, evenly over their sorted names; all if there are fewer.

    Raise DataError for a folder of another layout, and one without a readable image.
    """
    train = root / "train"
    try:
        classes = sorted(entry.name for entry in train.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{train} can't be read ({error.strerror}); {LAYOUT}.") from error
    folders = [f"train/{name}" for name in classes]
    changed = changed_ns(root, ["train", *folders])  # before the scan: a later change is seen when the index is opened
    with ThreadPoolExecutor(usable_threads()) as threads:
        found = list(threads.map(lambda name: _scan_class(root, name), folders))
    samples = [Sample(path, label, size) for label, (files, _) in enumerate(found) for path, size in files]
    if images is not None and images < len(samples):
        samples = [samples[place * len(samples) // images] for place in range(images)]
    unreadable = [why for _, reasons in found for why in reasons]
    if not samples:
        raise DataError(f"{train} holds no readable image ({', '.join(unreadable[:1]) or 'no JPEG file'}); {LAYOUT}.")
    return Index(
        form="jpeg",
        classes=len(classes),
        images=len(samples),
        checksum=checksum_of(samples),
        samples=samples,
        unreadable=unreadable,
        root=str(root),
        changed_ns=changed,
    )


def _scan_class(root: Path, folder: str) -> tuple[list[tuple[str, int]], list[str]]:
    """Return path and size of the image files of a class, and the unreadable files, each with the reason.

    Contents are not read, which would take hours for ImageNet: readers count images that can't be decoded.
    """
    files, unreadable = [], []
    try:
        names = sorted(file.name for file in (root / folder).iterdir())
    except OSError as error:
        return [], [f"{folder}: {error.strerror}"]
    for name in names:
        if not name.lower().endswith(ENDINGS) or name.startswith("."):
            continue
        path = f"{folder}/{name}"
        try:
            size = (root / path).stat().st_size
        except OSError as error:
            unreadable.append(f"{path}: {error.strerror}")
            continue
        if not size:
            unreadable.append(f"{path}: it is empty")
        elif not os.access(root / path, os.R_OK):
            unreadable.append(f"{path}: {os.strerror(errno.EACCES)}")
        else:
            files.append((path, size))
    return files, unreadable
