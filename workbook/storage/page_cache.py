"""The kernel's page cache: which files are in memory, and how to read them cold without being root.

A host of virtual machines or a storage controller may keep a cache of its own, which nothing here can see or drop.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

IN_MEMORY = ("tmpfs", "ramfs")
SERVED = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs")
SCRATCH_BYTES = 2**20
LEFT_SHARE = 0.01  # of a dropped file, that may stay in memory

_CHUNK_BYTES = 2**30  # mapped at a time; a multiple of the page size


class FileSystem(NamedTuple):
    """A mounted file system: its type, and its device or source."""

    type: str
    device: str

    def __str__(self) -> str:
        return f"{self.type} on {self.device}"


def file_system(path: str | Path) -> FileSystem | None:
    """Return the file system of a path; None where the system lists no mounts."""
    real = Path(path).resolve()
    holding = [part for part in psutil.disk_partitions(all=True) if real.is_relative_to(part.mountpoint)]
    # A later mount on the same place hides the earlier one.
    mount = max(reversed(holding), key=lambda part: len(part.mountpoint), default=None)
    return mount and FileSystem(mount.fstype, mount.device)


def sync_file_system(path: Path) -> None:
    """Write everything of a path's file system to the disk.

    A flush of each file would flush the disk's own cache each time, which takes minutes for 50,000 files.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if sys.platform != "linux" or ctypes.CDLL(None).syncfs(descriptor):
            os.sync()
    finally:
        os.close(descriptor)


def drop(files: Iterable[Path]) -> None:
    """Remove files from the page cache. Pages that a process has mapped stay. Raise OSError for an unreadable file."""
    synced: set[int] = set()
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            device = os.fstat(descriptor).st_dev
            if device not in synced:  # a page that is not yet written can't be dropped
                sync_file_system(file)
                synced.add(device)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(files: Iterable[Path]) -> float:
    """Return the share of the files' pages that are in memory, 0..1. The kernel tells it of own or writable files.

    Raise OSError for a file that can't be read, and if the kernel doesn't answer.
    """
    resident = pages = 0
    for file in files:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            for offset in range(0, size, _CHUNK_BYTES):
                counts = _resident(stream.fileno(), offset, min(_CHUNK_BYTES, size - offset))
                resident, pages = resident + counts[0], pages + counts[1]
    return resident / pages if pages else 0.0


def _resident(descriptor: int, offset: int, length: int) -> tuple[int, int]:
    """Return how many pages of a part of a file are in memory, and how many there are."""
    states = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=offset) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        failed = mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(length), ctypes.c_void_p(states.ctypes.data)
        )
        del view  # the map can't be closed while an array is a view of it
    if failed:
        raise OSError(ctypes.get_errno(), "the kernel doesn't tell which pages are in memory")
    return int((states & 1).sum()), len(states)


def why_not_cold(path: str | Path) -> str | None:
    """Return why files there can't be read cold; None if a test shows that dropping them works.

    The test drops `path` itself if it is a file, else a scratch file that it makes in the folder and removes.
    """
    if sys.platform != "linux":
        return "only Linux drops files from its page cache at a user's request"
    here = file_system(path)
    if here and here.type in IN_MEMORY:
        return f"{here.type} keeps its files in memory"
    if here and (here.type in SERVED or here.type.startswith("fuse.")):
        return f"the files are served ({here}), and the server's cache can't be dropped"
    if here and here.type == "zfs":
        return "ZFS keeps a cache of its own, which can't be dropped"
    given = Path(path)
    try:
        if given.is_file():
            return _why_not_dropped(given)
        with tempfile.NamedTemporaryFile(dir=given, prefix=".labkit-") as scratch:
            scratch.write(os.urandom(SCRATCH_BYTES))
            scratch.flush()
            return _why_not_dropped(Path(scratch.name))
    except OSError as error:
        return f"the test of dropping a file failed ({error.strerror or error})"


def _why_not_dropped(file: Path) -> str | None:
    with file.open("rb") as stream:
        stream.read(SCRATCH_BYTES)
    if not resident_share([file]):
        return f"{file_system(file)} doesn't use the page cache"
    drop([file])
    if (left := resident_share([file])) > LEFT_SHARE:
        return f"{left:.0%} of a dropped file stays in memory on {file_system(file)}"
    return None
