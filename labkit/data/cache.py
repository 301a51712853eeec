"""One cache of data sets as memory-mapped arrays: what is read, drawn or decoded once is mapped from then on.

    cache_dir()/<name>-<token>/   train_images.npy  train_labels.npy  val_images.npy  val_labels.npy  meta.json

An entry is written into a temporary sibling folder, flushed to the disk and renamed: there is a whole entry or none.
Arrays are appended through ordinary writes, since a memory map on a full disk kills the process instead of failing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, PositiveInt

from labkit.data.dataset import EDGE_PX, SPLITS, DataSet, Levels, Source, Split, SplitName, row_shape
from labkit.data.npy import ArrayWriter, ChannelMoments
from labkit.errors import DataError, UserError

_TEMPORARY = ".tmp-"
_SWEEP_AFTER_S = 24 * 3600
_EXCHANGE_S = 0.5  # far longer than two renames take
_WRITE_IMAGES = 8192  # images handed on at once, 25 MB


class Meta(BaseModel):
    """What meta.json says of an entry; `DataSet` explains the fields."""

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


class Damaged(DataError):  # noqa: N818 - says what was found, as errors.Unsupported does
    """A cache entry that is not what its meta.json says."""


def cache_dir() -> Path:
    """The cache folder, looked up at each call: $LABKIT_CACHE, else $XDG_CACHE_HOME/labkit, else ~/.cache/labkit."""
    if own := os.environ.get("LABKIT_CACHE"):
        return Path(own).expanduser().absolute()
    if (shared := os.environ.get("XDG_CACHE_HOME")) and Path(shared).is_absolute():
        return Path(shared) / "labkit"
    return Path("~/.cache/labkit").expanduser().absolute()


def _map(folder: Path, name: str, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """One array of an entry, mapped read-only; raises Damaged unless the file is exactly as long as it should be."""
    file = folder / f"{name}.npy"
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        size = file.stat().st_size
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{file} cannot be mapped ({error}).") from error
    if array.shape != shape or array.dtype != dtype or array.offset + array.nbytes != size:
        raise Damaged(f"{file} is not the {dtype.__name__} array of shape {shape} that meta.json says.")
    return array  # type: ignore[no-any-return]


def _read_meta(folder: Path) -> Meta:
    try:
        return Meta.model_validate_json((folder / "meta.json").read_bytes())
    except (OSError, ValueError) as error:
        raise Damaged(f"{folder / 'meta.json'} cannot be read ({error}).") from error


def open_entry(folder: Path) -> DataSet:
    """Map an entry; raises Damaged, a DataError, when it is missing or has other sizes than its meta.json says."""
    meta = _read_meta(folder)
    row = row_shape(edge_px=meta.edge_px, words=meta.words)

    def split(name: SplitName, count: int) -> Split:
        return Split(
            images=_map(folder, f"{name}_images", (count, *row), np.uint8),
            labels=_map(folder, f"{name}_labels", (count,), np.int16),
        )

    return DataSet(
        name=meta.name,
        classes=meta.classes,
        train=split("train", meta.train_images),
        val=split("val", meta.val_images),
        mean=meta.mean,
        std=meta.std,
        checksum=meta.checksum,
        description=meta.description,
        words=meta.words,
    )


def cached(source: Source) -> DataSet:
    """The data set of a source: its entry if there is a whole one, else the entry it writes now.

    Raises UserError when the cache folder cannot be written, and what reading the source raises.
    """
    folder = cache_dir() / f"{source.name}-{source.token}"
    try:
        return open_entry(folder)
    except Damaged:
        pass  # missing, or to be rebuilt
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}{folder.name}-", dir=folder.parent))
        try:
            _write(source, temporary)
            _publish(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # gone already when it was published
    except OSError as error:
        raise UserError(
            f"the data cache {folder.parent} cannot be written ({error.strerror or error}); "
            "set LABKIT_CACHE to a folder with room for it."
        ) from error
    try:
        return open_entry(folder)
    except Damaged:  # a process that found the old entry damaged may be exchanging it at this moment
        time.sleep(_EXCHANGE_S)
        return open_entry(folder)


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
                del chunk_images, chunk_labels  # an archive's batch is large: let it go before the next is read
        if not images.count:
            raise DataError(f"{source.name} has no {split} image; both splits need some.")
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


def _publish(temporary: Path, folder: Path) -> None:
    """Rename a finished entry to its place; a whole entry that is there by then, another process's, stays."""
    for _attempt in range(5):
        try:
            temporary.rename(folder)  # fails unless `folder` is absent or empty
            _fsync_folder(folder.parent)
            return
        except OSError:
            if not folder.exists():
                raise
        try:
            open_entry(folder)
            return
        except Damaged:
            aside = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}damaged-", dir=folder.parent))
            with contextlib.suppress(FileNotFoundError):  # another process moved it
                folder.rename(aside / folder.name)
            shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{folder} keeps being replaced by damaged entries")


def _sweep(cache: Path) -> None:
    """Remove temporary folders that nothing has written to for a day: of processes that were killed."""
    for leftover in cache.glob(f"{_TEMPORARY}*"):
        try:
            newest_s = max(file.stat().st_mtime for file in (leftover, *leftover.iterdir()))
        except OSError:
            continue  # another process is removing it
        if time.time() - newest_s > _SWEEP_AFTER_S:
            shutil.rmtree(leftover, ignore_errors=True)


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_by_checksum(name: str, checksum: str) -> DataSet:
    """Open the cached data set of that name and content checksum, reading and drawing nothing anew.

    Worker processes use it, so that a set is made once, by the process that starts them. Raises DataError when no
    whole entry has that checksum.
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
