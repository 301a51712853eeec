"""Say what the text of a data option names: embedded images, a folder's parts, or something that labkit cannot read.

This is the only place that resolves such a text. What a part is follows from evidence: the contents of files, the names
of classes and images, and sizes. A folder may have several parts, such as training images in files beside validation
images.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from labkit.data import ilsvrc2012, imagenet32
from labkit.data.content import contents, what_is
from labkit.data.dataset import ILSVRC2012, Source
from labkit.errors import DataError, UserError, unknown
from labkit.files import users_path

NAMES = ("synthetic32", "digits")
OWN_JPEGS = "own_jpegs"  # training images in files that are not ImageNet's
JPEG_ENDINGS = (".jpeg", ".jpg")
FILES_LAYOUT = "training images in files (train/<class>/*.JPEG)"
_ADDRESS = re.compile(r"^\w{2,}:/|\w{2,}://|^[^/]+:[^/]+@")

# arrays: training and validation images of 32 px. validation: ImageNet's, for scoring. files: JPEG files for training.
Role: TypeAlias = Literal["arrays", "validation", "files"]


@dataclass(frozen=True)
class Part:
    """Images for one use: their name as in `DataSet.name`, and what they are, in words. `reason` says why not usable.

    `folder` is what a reader of the role takes; for files it is the folder that holds `train`.
    """

    role: Role
    name: str
    words: str
    folder: Path = Path()
    reason: str = ""


@dataclass(frozen=True)
class Identity:
    """What a text names: parts, usable or not. Without any part, `reason` says what is there instead."""

    given: str
    parts: tuple[Part, ...]
    reason: str = ""

    def part(self, role: Role) -> Part | None:
        """Return the usable part with this role, or None."""
        return next((part for part in self.parts if part.role == role and not part.reason), None)

    def why_none(self) -> str:
        """Return what is wrong with the parts that cannot be used."""
        return " ".join([*(part.reason for part in self.parts if part.reason), *filter(None, [self.reason])])


def identify(given: str) -> Identity:
    """Return what a text names. Images are not read, except the sizes of a few.

    Raise UserError for an unknown name, an address, and a path that cannot be read.
    """
    if given in ("", *NAMES):
        name = given or NAMES[0]
        return Identity(given, (Part("arrays", name, f"{name}, images that come with labkit"),))
    refuse_address(given)
    path = users_path(given)
    try:
        if not path.exists():
            layouts = f"{imagenet32.LAYOUT}, {ilsvrc2012.LAYOUT} or {FILES_LAYOUT}"
            raise unknown("data set", given, NAMES, hint=f"A path must be a folder that exists and holds {layouts}.")
        if not path.is_dir():
            return Identity(given, (), f"{path} is no folder but {what_is(path)}; name the folder that holds it.")
        parts = tuple(part for of in (_validation, _files) if (part := of(path)))
        if all(part.reason for part in parts) and (archive := _arrays(path)):
            parts = (archive, *parts)
    except OSError as error:  # a name that is too long, another user's folder, no permission
        raise UserError(f"DATA={given} can't be read: {error}. Name a folder that you can read.") from error
    layouts = f"{imagenet32.LAYOUT}, {ilsvrc2012.LAYOUT} and {FILES_LAYOUT}"
    return Identity(given, parts, "" if parts else f"{path} holds {contents(path)}. labkit reads {layouts}.")


def refuse_address(given: str) -> None:
    """Raise UserError for an address. It may hold a password or a token, so no message repeats it."""
    if _ADDRESS.search(given):
        raise UserError(
            "the data set is an address, and labkit reads folders: download the files into a folder, unpack shards and "
            f"archives there, and name the folder. For example, labkit reads {FILES_LAYOUT}."
        )


def source_of(identity: Identity) -> Source:
    """Return the cache's source of the arrays or the validation images. Raise DataError if there are none."""
    if part := identity.part("arrays"):
        return imagenet32.source(part.folder)
    if part := identity.part("validation"):
        return ilsvrc2012.source(part.folder)
    there = "; ".join(part.words for part in identity.parts if not part.reason)
    raise DataError(f"{identity.given} holds {there}, which are read from files." if there else identity.why_none())


def _arrays(path: Path) -> Part | None:
    """Return the ImageNet32 archive in a folder; with a reason if it is incomplete; None if there is no batch."""
    try:
        form, _ = imagenet32.archive_files(path)
    except imagenet32.Incomplete as error:
        return Part("arrays", "imagenet32", "ImageNet32", path, str(error))
    except DataError:
        return None
    return Part("arrays", "imagenet32", f"ImageNet32 in the {form} form", path)


def _validation(path: Path) -> Part | None:
    folder = ilsvrc2012.find_folder(path)
    if folder is None:
        return None
    try:
        images = sum(map(len, ilsvrc2012.list_images(folder).values()))
    except DataError as error:
        return Part("validation", ILSVRC2012, "validation images", folder, str(error))
    return Part("validation", ILSVRC2012, f"{images:,} of ImageNet's validation images", folder)


def _files(path: Path) -> Part | None:
    """Return the training images in files, by their classes, their names and the sizes of some."""
    root = next((root for root in ilsvrc2012.roots(path) if (root / "train").is_dir()), None)
    if root is None:
        return None
    train = root / "train"
    classes = sorted(entry.name for entry in _entries(train) if entry.is_dir())
    if not classes:
        return None
    each = -(-ilsvrc2012.SIZED // len(classes))
    files = [Path(entry.path) for name in classes for entry in islice(filter(_is_jpeg, _entries(train / name)), each)]
    words = f"training images in files, {len(classes):,} classes"
    if not files:
        reason = f"{train / classes[0]} holds {contents(train / classes[0])}; labkit reads {FILES_LAYOUT}."
        return Part("files", OWN_JPEGS, words, root, reason)
    size = ilsvrc2012.common_size(files)
    if size and len(files) > 1:
        words += f", {size[0]} x {size[1]} pixels each"
    elif ilsvrc2012.are_classes(classes) and all(ilsvrc2012.is_training_image(file.name) for file in files):
        return Part("files", ILSVRC2012, f"ImageNet's {words}", root)
    return Part("files", OWN_JPEGS, f"own {words}", root)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (entry for entry in entries if not entry.name.startswith("."))


def _is_jpeg(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(JPEG_ENDINGS) and entry.is_file()


def inspect(identity: Identity) -> list[str]:
    """Read the images of each usable part and return what they are, in sentences. Raise DataError if one is damaged.

    Training images in files are counted, and not decoded, which would take hours for ImageNet.
    """
    said = []
    for part in identity.parts:
        if part.reason:
            continue
        if part.role == "files":
            endings = Counter[str]()
            for name in _entries(part.folder / "train"):
                if name.is_dir():
                    endings.update(Path(entry.name).suffix for entry in _entries(Path(name.path)) if _is_jpeg(entry))
            listed = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common())
            said.append(f"{part.words[0].upper()}{part.words[1:]}: {endings.total():,} images ({listed}).")
        elif part.role == "validation":
            said += ilsvrc2012.inspect(part.folder)
        elif part.name == "imagenet32":
            said += imagenet32.inspect(part.folder)
        else:
            said.append(f"{part.words[0].upper()}{part.words[1:]}.")
    return said
