"""Read ImageNet's validation set (ILSVRC 2012) at full size, to score networks with published ImageNet weights.

The layout is that of torchvision's ImageFolder: `val/<class folder>/*.JPEG` with 1,000 class folders. Their names
(`n` and eight digits, from WordNet) in sorted order are the classes 0..999. Images are prepared as torchvision's
weights IMAGENET1K_V1 require: shorter edge to 256 pixels, bilinear with antialias, then the centre of 224 x 224.

No network trains on these images. 1,250 images, spread evenly over the classes, are the `train` split, which
calibrates the ranges of INT8. The other images are scored. This is the protocol of the Dell V100 paper, section V.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tqdm import tqdm

from labkit.data.dataset import ILSVRC2012, SPLITS, Chunks, Images, Levels, Source, SplitName
from labkit.errors import DataError
from labkit.files import users_path

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # part of the cache token: raise it with any change to the images or to the splits
CLASSES = 1000
FIRST_CLASS, LAST_CLASS = "n01440764", "n15075141"  # in sorted order; they tell ILSVRC 2012 from other 1,000-class sets
PUBLISHED_IMAGES = 50_000
CALIBRATION_IMAGES = 50 * 25  # Dell V100, section V: 50 batches of 25 images
RESIZED_PX, EDGE_PX = 256, 224
MEAN: Levels = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD: Levels = (0.229 * 255, 0.224 * 255, 0.225 * 255)
LAYOUT = f"val with {CLASSES:,} class folders ({FIRST_CLASS} to {LAST_CLASS}) of ImageNet's validation images"

FORMATS = ("JPEG", "PNG")  # ImageNet's .JPEG files are of both
MOST_TIMES_LONGER = 100  # of the longer side than the shorter one
_CLASS_FOLDER = re.compile(r"n\d{8}")
_ENDINGS = (".jpeg", ".jpg", ".png")
_CHUNK = 256  # images decoded before they are handed on, 39 MB
_QUIET_S, _LOG_EVERY_S = 3.0, 30.0  # delay before the progress bar appears, and its interval in a log


class Item(NamedTuple):
    """One image file with its class, 0..999."""

    file: Path
    label: int


def find_folder(path: str | Path) -> Path | None:
    """Return the folder with the class folders, `val` in `path` or `path` itself. Return None if neither has any."""
    given = users_path(path)
    for folder in (given / "val", given):
        if folder.is_dir() and next(_class_folders(folder), None) is not None:
            return folder.resolve()
    return None


def _class_folders(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if _CLASS_FOLDER.fullmatch(entry.name) and entry.is_dir())


def list_images(folder: Path) -> dict[SplitName, list[Item]]:
    """Return the image files of both splits, in the order of the cache entry.

    `train` is in class order. `val` has the first image of each class, then the second of each, and so on, so that its
    first images cover all classes equally. Raise DataError for other class folders than ILSVRC 2012's, a class without
    an image, no more images than calibration takes, or more images than the validation set has.
    """
    classes = sorted(_class_folders(folder))
    if len(classes) != CLASSES:
        raise DataError(f"{folder} has {len(classes):,} class folders (n and eight digits); it must have {CLASSES:,}.")
    if (classes[0], classes[-1]) != (FIRST_CLASS, LAST_CLASS):
        raise DataError(
            f"{folder} has the class folders {classes[0]} to {classes[-1]}; those of ILSVRC 2012 are {FIRST_CLASS} to "
            f"{LAST_CLASS}, and labels of another set would be wrong."
        )
    of_class = [_image_files(folder / name) for name in classes]
    for name, files in zip(classes, of_class, strict=True):
        if not files:
            raise DataError(f"{folder / name} holds no image ({', '.join(_ENDINGS)}); each class needs at least one.")
    ranked = [(Item(file, label), rank) for label, files in enumerate(of_class) for rank, file in enumerate(files)]
    if len(ranked) <= CALIBRATION_IMAGES:
        raise DataError(
            f"{folder} has {len(ranked):,} images; calibration takes {CALIBRATION_IMAGES:,}, and scoring needs more."
        )
    if len(ranked) > PUBLISHED_IMAGES:
        raise DataError(
            f"{folder} has {len(ranked):,} images, but ImageNet's validation set has {PUBLISHED_IMAGES:,}; networks "
            "are not scored on their training images, so give the folder of the validation set."
        )
    chosen = set(np.linspace(0, len(ranked) - 1, CALIBRATION_IMAGES).astype(int).tolist())
    rest = [entry for place, entry in enumerate(ranked) if place not in chosen]
    return {
        "train": [item for place, (item, _) in enumerate(ranked) if place in chosen],
        "val": [item for item, _ in sorted(rest, key=lambda entry: (entry[1], entry[0].label))],
    }


def _image_files(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() in _ENDINGS and not file.name.startswith(".")
    )


def read_image(file: Path) -> Images:
    """Return one image as a network's input before normalisation, uint8 (3, 224, 224).

    The bytes equal those of torchvision's Resize(256), CenterCrop(224) and PILToTensor. Raise DataError for a file that
    cannot be read, is no image, or is truncated.
    """

    try:
        image = decoded(file.read_bytes())
    except Exception as error:  # Pillow raises nearly anything for a damaged image: OSError, SyntaxError, ValueError …
        if isinstance(error, OSError) and error.errno is not None:  # an error of the file system, not of the image
            raise DataError(f"{file} can't be read ({error.strerror}).") from error
        raise DataError(f"{file} is no image, or truncated or damaged ({error}); fetch it again.") from error
    return scaled_centre(image, short_px=RESIZED_PX, edge_px=EDGE_PX)


def decoded(data: bytes) -> Image:
    """Return the image that a file holds, in RGB.

    Raise ValueError for another format or an absurd shape, and Pillow's errors for a damaged or huge image. Pillow
    would start Ghostscript for a PostScript file of any name. A picture of 1 x 65,000 pixels has few bytes, and
    gigabytes once its shorter side has 256 pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError as error:
        raise ValueError("it is neither JPEG nor PNG") from error
    with opened:
        width, height = opened.size
        if max(width, height) > MOST_TIMES_LONGER * min(width, height):
            raise ValueError(f"it has {width:,} x {height:,} pixels")
        return opened.convert("RGB")


def scaled_centre(image: Image, *, short_px: int, edge_px: int) -> Images:
    """Return the centre of an image whose shorter side was scaled to `short_px`, uint8 (3, edge_px, edge_px)."""
    from PIL.Image import Resampling

    width, height = image.size
    scaled = int(short_px * max(width, height) / min(width, height))
    size = (short_px, scaled) if width <= height else (scaled, short_px)
    image = image.resize(size, Resampling.BILINEAR)  # Pillow's filter includes antialias
    left, top = (round((edge - edge_px) / 2) for edge in size)
    pixels = np.asarray(image.crop((left, top, left + edge_px, top + edge_px)))
    return pixels.transpose(2, 0, 1)


def read_images(items: Sequence[Item]) -> Chunks:
    """Yield the images in chunks, uint8 (n, 3, 224, 224), with labels int64 (n,). Decode on every usable core.

    A progress bar on stderr appears after 3 s. Raise the DataErrors of `read_image`.
    """
    every_s = 0.5 if os.isatty(2) else _LOG_EVERY_S
    with (
        ThreadPoolExecutor() as threads,  # Pillow decodes and scales without the GIL
        tqdm(total=len(items), desc="reading images", delay=_QUIET_S, mininterval=every_s, leave=False) as progress,
    ):
        for first in range(0, len(items), _CHUNK):
            part = items[first : first + _CHUNK]
            images = np.stack(list(threads.map(read_image, [item.file for item in part])))
            yield images, np.array([item.label for item in part], dtype=np.int64)
            progress.update(len(part))


def describe(train_images: int, val_images: int) -> str:
    """Return one sentence that describes a set with these numbers of calibration and scored images."""
    published = train_images + val_images == PUBLISHED_IMAGES
    extent = "as published" if published else f"a subset of the published {PUBLISHED_IMAGES:,}"
    return (
        f"ImageNet's validation set (ILSVRC 2012, {extent}): {val_images:,} images to score and {train_images:,} "
        f"others, spread evenly over it, to calibrate INT8; shorter edge {RESIZED_PX} px, centre {EDGE_PX} px, "
        "bilinear with antialias, normalised with torchvision's mean and standard deviation."
    )


def inspect(folder: Path) -> list[str]:
    """Read every image and return the contents in sentences. Raise the DataErrors of `list_images` and `read_image`."""
    items = list_images(folder)
    for split in SPLITS:
        for _images, _labels in read_images(items[split]):
            pass
    return [describe(*(len(items[split]) for split in SPLITS)), f"{CLASSES:,} classes; every image can be read."]


def source(folder: Path) -> Source:
    """Return the cache's source of the set. Its token depends on each file's name, size and modification time.

    Raise the DataErrors of `list_images`.
    """
    items = list_images(folder)
    stamps = hashlib.sha256(f"v{VERSION} {folder}\n".encode())
    for split in SPLITS:
        for file, _ in items[split]:
            status = file.stat()
            stamps.update(f"{file.parent.name}/{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return Source(
        name=ILSVRC2012,
        token=stamps.hexdigest()[:16],
        classes=CLASSES,
        chunks=lambda split: read_images(items[split]),
        describe=describe,
        edge_px=EDGE_PX,
        normalisation=(MEAN, STD),
    )
