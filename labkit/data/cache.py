"""Cache of data sets as memory-mapped arrays. A set is read, drawn or decoded once and memory-mapped afterwards.

    cache_dir()/<name>-<token>/   train_images.npy  train_labels.npy  val_images.npy  val_labels.npy  meta.json

An entry is written into a temporary sibling folder, flushed to the disk and renamed, so no partial entry exists. One
process at a time writes.
Arrays are appended with ordinary writes, since a write to a memory map on a full disk kills the process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, PositiveInt

from labkit.data.dataset import EDGE_PX, SPLITS, DataSet, Levels, Source, Split, SplitName, row_shape
from labkit.data.npy import ArrayWriter, ChannelMoments
from labkit.data.random_bits import check_seed, permutation
from labkit.errors import DataError, UserError
from labkit.files import users_path

_WRITE_IMAGES = 8192  # images written at once, 25 MB


class Meta(BaseModel):
    """Contents of an entry's meta.json. `DataSet` explains the fields."""

    format: Literal[1]
    name: str
    description: str
    classes: int
    train_images: PositiveInt
    val_images: PositiveInt
    mean: Levels
    std: Levels
    checksum: str
    edge_px: int = EDGE_PX
    words: int = 0


class Damaged(DataError):  # noqa: N818 - an adjective
    """A cache entry that is missing, cannot be read, or differs from its meta.json."""


def cache_dir() -> Path:
    """Return the current cache folder: $LABKIT_CACHE, else $XDG_CACHE_HOME/labkit, else ~/.cache/labkit."""
    if own := os.environ.get("LABKIT_CACHE"):
        return users_path(own).absolute()
    if (shared := os.environ.get("XDG_CACHE_HOME")) and Path(shared).is_absolute():
        return Path(shared) / "labkit"
    return users_path("~/.cache/labkit").absolute()


def _map(folder: Path, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Return one array of an entry, mapped read-only. Raise Damaged for another type, shape or file size."""
    file = folder / f"{name}.npy"
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        size = file.stat().st_size
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{file} cannot be mapped ({error}).") from error
    if array.shape != shape or array.dtype != dtype or array.offset + array.nbytes != size:
        raise Damaged(f"{file} is not the {dtype.__name__} array of shape {shape} that meta.json describes.")
    return array  # type: ignore[no-any-return]


def _read_meta(folder: Path) -> Meta:
    try:
        return Meta.model_validate_json((folder / "meta.json").read_bytes())
    except (OSError, ValueError) as error:
        raise Damaged(f"{folder / 'meta.json'} cannot be read ({error}).") from error


def open_entry(folder: Path) -> DataSet:
    """Return an entry as memory maps. Raise Damaged, a DataError, if it is missing or differs from its meta.json."""
    meta = _read_meta(folder)
    row = row_shape(edge_px=meta.edge_px, words=meta.words)

    def split(name: SplitName, count: int) -> Split:
        return Split(
            images=_map(folder, f"{name}_images", (count, *row), np.uint8),
            labels=_map(folder, f"{name}_labels", (count,), np.int16),
        )

    about = meta.model_dump(exclude={"format", "train_images", "val_images", "edge_px"})
    return DataSet(train=split("train", meta.train_images), val=split("val", meta.val_images), **about)


def cached(source: Source) -> DataSet:
    """Return the data set of a source from its cache entry. Write the entry first if no whole entry exists.

    Raise UserError if the cache folder cannot be written, and any error of reading the source.
    """
    folder = cache_dir() / f"{source.name}-{source.token}"
    try:
        return open_entry(folder)
    except Damaged:
        pass  # the entry is missing or damaged: write it below
    with writing(folder.parent):
        try:
            return open_entry(folder)  # another process has written it meanwhile
        except Damaged:
            shutil.rmtree(folder, ignore_errors=True)
        temporary = folder.with_name(f".tmp-{folder.name}")
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        try:
            temporary.mkdir()
            _write(source, temporary)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _fsync_folder(folder.parent)
    return open_entry(folder)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of data within the block: one process at a time writes there, and others wait.

    Raise UserError if the folder cannot be written, and for an error of writing within the block.
    """
    import fcntl  # not at the top: Windows, which lacks it, can read records

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees it when the process ends, however it ends
            yield
    except OSError as error:
        raise UserError(
            f"{folder} can't be written ({error.strerror or error}); set LABKIT_CACHE to a folder with room for it, "
            "and run this again, which keeps whole files."
        ) from error


def _write(source: Source, folder: Path) -> None:
    """Write an entry's arrays and meta.json into `folder` and flush them to the disk."""
    moments, shape = ChannelMoments(), row_shape(edge_px=source.edge_px, words=source.words)
    counts: dict[SplitName, int] = {}
    digests: list[str] = []
    for split in SPLITS:
        with (
            ArrayWriter(folder / f"{split}_images.npy", shape, np.uint8) as images,
            ArrayWriter(folder / f"{split}_labels.npy", (), np.int16) as labels,
        ):
            for chunk_images, chunk_labels in source.chunks(split):
                for start in range(0, len(chunk_images), _WRITE_IMAGES):
                    part = chunk_images[start : start + _WRITE_IMAGES]
                    images.append(part)
                    if split == "train" and source.normalisation is None:
                        moments.add(part)
                labels.append(chunk_labels)
                del chunk_images, chunk_labels  # free an archive's large batch before the next is read
        if not images.count:
            raise DataError(f"{source.name} has no {split} image; both splits need at least one.")
        counts[split] = images.count
        digests += [f"{split}_images {images.digest()}", f"{split}_labels {labels.digest()}"]
    mean, std = source.normalisation or moments.mean_and_std()
    meta = Meta(
        format=1,
        name=source.name,
        description=source.describe(counts["train"], counts["val"]),
        classes=source.classes,
        train_images=counts["train"],
        val_images=counts["val"],
        mean=mean,
        std=std,
        checksum=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
        edge_px=source.edge_px,
        words=source.words,
    )
    with (folder / "meta.json").open("w", encoding="utf-8") as stream:
        stream.write(meta.model_dump_json(indent=1, exclude_defaults=True))
        stream.flush()
        os.fsync(stream.fileno())
    _fsync_folder(folder)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_by_checksum(name: str, checksum: str) -> DataSet:
    """Return the cached data set with this name and content checksum. Never read or draw a set anew.

    So processes share a set that one of them made. Raise DataError if no whole entry has the checksum.
    """
    for folder in sorted(cache_dir().glob(f"{name}-*")):
        try:
            if _read_meta(folder).checksum == checksum:
                return open_entry(folder)
        except Damaged:
            continue
    raise DataError(
        f"no whole cache entry of {name!r} in {cache_dir()} has the checksum {checksum}; open the data set by its name "
        "or path first, or set LABKIT_CACHE to the folder that holds it."
    )


def subset(whole: DataSet, *, train_images: int | None, val_images: int | None, seed: int) -> DataSet:
    """Return a set with at most these numbers of images, drawn without replacement with `seed`, in original order.

    Images are drawn because an archive may be ordered by class. None, or a number not below the size of a split, keeps
    the split whole. If both splits stay whole, `whole` itself is returned. The draw of n images contains every smaller
    draw. Mean and standard deviation remain those of the whole set. Raise UserError for a seed outside 0 .. 2**64 - 1.
    """
    check_seed("a subset", seed)

    def drawn(split: Split, count: int | None, number: int) -> Split:
        if count is None or count >= len(split):
            return split
        chosen = np.sort(permutation(len(split), key=(seed, number))[:count])
        return Split(split.images[chosen], split.labels[chosen])

    train, val = drawn(whole.train, train_images, 0), drawn(whole.val, val_images, 1)
    if train is whole.train and val is whole.val:
        return whole
    facts = f"{whole.checksum} {len(train)} {len(val)} {seed}"
    return replace(
        whole,
        train=train,
        val=val,
        checksum=hashlib.sha256(facts.encode()).hexdigest(),
        description=f"{len(train):,} training and {len(val):,} validation images drawn with seed {seed} from: "
        f"{whole.description}",
    )
