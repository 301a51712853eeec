"""The JPEG files of a user: `train/<class>/*.JPEG`, which are read as they stand and never written to."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit.data.identity import JPEG_ENDINGS
from labkit.errors import DataError
from workbook.hardware.limits import usable_threads
from workbook.storage.forms import Index, Sample, changed_ns, checksum_of

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
