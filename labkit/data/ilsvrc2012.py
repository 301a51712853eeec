"""Read ImageNet's validation set (ILSVRC 2012) at full size, to score networks with published ImageNet weights.

The layout is that of torchvision's ImageFolder, `val/<class folder>/*.JPEG` with 1,000 class folders, or Kaggle's: all
files in one folder, with their classes in `LOC_val_solution.csv` there or above. Classes are WordNet ids (`n` and eight
digits), in sorted order 0..999. Class folders alone tell no set: parts of ImageNet have some of them, its training
images and processed copies (ImageNet-C) all. So the names of the files and the sizes of some images must fit too.

Images are prepared as torchvision's weights IMAGENET1K_V1 require: shorter edge to 256 pixels, bilinear with antialias,
then the centre of 224 x 224.

No network trains on these images. 1,250 images, spread evenly over the classes, are the `train` split, which
calibrates the ranges of INT8. The other images are scored. This is the protocol of the Dell V100 paper, section V.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tqdm import tqdm

from labkit.data.content import contents, what_is
from labkit.data.dataset import ILSVRC2012, SPLITS, Chunks, Images, Levels, Source, SplitName
from labkit.errors import DataError
from labkit.files import users_path

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # part of the cache token: raise it with any change to the images or to the splits
CLASSES = 1000
# SHA-256 of the sorted WordNet ids of the classes, joined by line ends. `imagenet_synsets.txt` of timm 1.0.31 has them,
# and `imagenet_lsvrc_2015_synsets.txt` of TensorFlow's models: the classes of 2012 and 2015 are the same.
CLASSES_SHA256 = "385e0240499426c022b773be1ae4da780f057b89c9694c7f47199f62746b6edd"
PUBLISHED_IMAGES = 50_000
CALIBRATION_IMAGES = 50 * 25  # Dell V100, section V: 50 batches of 25 images
RESIZED_PX, EDGE_PX = 256, 224
MEAN: Levels = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STD: Levels = (0.229 * 255, 0.224 * 255, 0.225 * 255)
LAYOUT = "ImageNet's validation images (val with 1,000 class folders, or as on Kaggle)"
SOLUTION = "LOC_val_solution.csv"  # Kaggle's classes of the validation images

FORMATS = ("JPEG", "PNG")  # ImageNet's .JPEG files are of both
MOST_TIMES_LONGER = 100  # of the longer side than the shorter one
_ROOTS = ("", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")  # Kaggle's folders above `val`
_CLASS_FOLDER = re.compile(r"n\d{8}")
_VALIDATION = re.compile(r"ILSVRC2012_val_\d{8}(_n\d{8})?\.\w+")  # Hugging Face adds the class
_TRAINING = re.compile(r"(n\d{8})_\d+(_n\d{8})?\.\w+")
SIZED = 32  # images whose sizes are looked at
_ENDINGS = (".jpeg", ".jpg", ".png")
_CHUNK = 256  # images decoded before they are handed on, 39 MB
_QUIET_S = 3.0  # delay before the progress bar appears


class Item(NamedTuple):
    """One image file with its class, 0..999."""

    file: Path
    label: int


def roots(path: str | Path) -> list[Path]:
    """Return the folders that may hold `train` and `val`: the given one and those of Kaggle's layout below it."""
    return [folder for below in _ROOTS if (folder := users_path(path) / below).is_dir()]


def find_folder(path: str | Path) -> Path | None:
    """Return the folder of the validation images: `val` or `validation` in one of `roots`, or `path` itself.

    It has class folders, or the images themselves. Return None if there is none.
    """
    of_roots = [root / name for root in roots(path) for name in ("val", "validation")]
    for folder in (*of_roots, users_path(path)):
        if folder.is_dir() and (next(_class_folders(folder), None) or next(_flat_images(folder), None)):
            return folder.resolve()
    return None


def _class_folders(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if _CLASS_FOLDER.fullmatch(entry.name) and entry.is_dir())


def _flat_images(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if _VALIDATION.fullmatch(entry.name))


def are_classes(names: Iterable[str]) -> bool:
    """Return whether these are the WordNet ids of all 1,000 classes of ILSVRC 2012."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest() == CLASSES_SHA256


def is_training_image(name: str) -> bool:
    """Return whether a file is named like ImageNet's training images, `n01440764_10026.JPEG`."""
    return _TRAINING.fullmatch(name) is not None


def common_size(files: Sequence[Path]) -> tuple[int, int] | None:
    """Return width and height in pixels if some of the images, evenly over the files, all have the same. Else None.

    Files that are no images are left out. ImageNet's images have many sizes, and those of processed copies one.
    """
    from PIL import Image

    sizes = set()
    for file in files[:: max(1, len(files) // SIZED)]:
        try:
            with Image.open(file, formats=FORMATS) as opened:
                sizes.add(opened.size)
        except Exception:  # noqa: BLE001, S112 - Pillow raises nearly anything for a damaged image
            continue
    return sizes.pop() if len(sizes) == 1 else None


def list_images(folder: Path) -> dict[SplitName, list[Item]]:
    """Return the image files of both splits, in the order of the cache entry.

    `train` is in class order. `val` has the first image of each class, then the second of each, and so on, so that its
    first images cover all classes equally. Raise DataError for images that are not ILSVRC 2012's validation images by
    their classes, names and sizes, a class without an image, and no more images than calibration takes.
    """
    by_class = {name: _image_files(folder / name) for name in sorted(_class_folders(folder))} or _solved(folder)
    if not are_classes(by_class):
        which = "but other ones" if len(by_class) == CLASSES else f"and this folder {len(by_class):,}"
        raise DataError(
            f"{folder} is not ImageNet's: ILSVRC 2012 has {CLASSES:,} classes (n and eight digits), {which}."
        )
    for name, files in by_class.items():
        if not files:
            raise DataError(f"{folder / name} holds no image ({', '.join(_ENDINGS)}), but {contents(folder / name)}.")
    every = [file for files in by_class.values() for file in files]
    for file in every:
        if not _VALIDATION.fullmatch(file.name):
            what = (
                "a training image of ImageNet, on which networks are not scored"
                if is_training_image(file.name)
                else ("not named like ImageNet's validation images")
            )
            raise DataError(f"{file} is {what}; give validation images, ILSVRC2012_val_00000001.JPEG and so on.")
    if len(every) <= CALIBRATION_IMAGES:
        raise DataError(
            f"{folder} has {len(every):,} images; calibration takes {CALIBRATION_IMAGES:,}, and scoring needs more."
        )
    if size := common_size(every):
        raise DataError(
            f"the images in {folder} have {size[0]} x {size[1]} pixels, and ImageNet's have many sizes: this is a "
            "processed copy, such as ImageNet-C, whose accuracies are not ImageNet's. Give the original images."
        )
    ranked = [
        (Item(file, label), rank) for label, files in enumerate(by_class.values()) for rank, file in enumerate(files)
    ]
    chosen = set(np.linspace(0, len(ranked) - 1, CALIBRATION_IMAGES).astype(int).tolist())
    rest = [entry for place, entry in enumerate(ranked) if place not in chosen]
    return {
        "train": [item for place, (item, _) in enumerate(ranked) if place in chosen],
        "val": [item for item, _ in sorted(rest, key=lambda entry: (entry[1], entry[0].label))],
    }


def _solved(folder: Path) -> dict[str, list[Path]]:
    """Return the images of a folder without class folders by class, in sorted order, as Kaggle's table says.

    Raise DataError without the table, and for an image that it lacks.
    """
    table = next((file for above in (folder, *folder.parents[:4]) if (file := above / SOLUTION).is_file()), None)
    if table is None:
        raise DataError(
            f"{folder} has the images of all classes in one folder: their classes are in Kaggle's {SOLUTION}, which "
            "is neither there nor above. Put it there, or sort the images into class folders."
        )
    with table.open(encoding="utf-8", errors="replace", newline="") as lines:
        class_of = {row[0]: row[1].partition(" ")[0] for row in csv.reader(lines) if len(row) == 2}
    by_class: dict[str, list[Path]] = {}
    for name in sorted(_flat_images(folder)):
        if not _CLASS_FOLDER.fullmatch(of := class_of.get(name.partition(".")[0], "")):
            raise DataError(f"{table} has no class of {name}; give the {SOLUTION} of these images.")
        by_class.setdefault(of, []).append(folder / name)
    return dict(sorted(by_class.items()))


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
        if (kind := what_is(file)) not in ("a JPEG image", "a PNG image"):
            raise DataError(f"{file} is {kind}, no JPEG or PNG image ({error}).") from error
        raise DataError(f"{file} is {kind}, truncated or damaged ({error}); fetch it again.") from error
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

    On a terminal, a progress bar appears after 3 s. Raise the DataErrors of `read_image`.
    """
    with (
        ThreadPoolExecutor() as threads,  # Pillow decodes and scales without the GIL
        tqdm(total=len(items), desc="reading images", delay=_QUIET_S, disable=None, leave=False) as progress,
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
        for file, label in items[split]:
            status, of = file.stat(), label if file.parent == folder else file.parent.name
            stamps.update(f"{of}/{file.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return Source(
        name=ILSVRC2012,
        token=stamps.hexdigest()[:16],
        classes=CLASSES,
        chunks=lambda split: read_images(items[split]),
        describe=describe,
        edge_px=EDGE_PX,
        normalisation=(MEAN, STD),
    )
