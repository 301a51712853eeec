"""Files of a stored set that are cut off, as an interrupted copy leaves them. Libraries read them up to the cut."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.data.stored import StoredSet

_TAR_END = bytes(1024)


def cut_shards(stored: StoredSet) -> int:
    """Return how many shards are missing or cut off. Without a difference in total size no file is read.

    It is 0 for shards on a server: one that is cut off ends the reading with an error.
    """
    if stored.form not in _WHOLE or stored.addresses:
        return 0
    sizes = {file: file.stat().st_size if file.is_file() else 0 for file in stored.files}
    if sum(sizes.values()) == stored.file_bytes:
        return 0
    return sum(not (size and _WHOLE[stored.form](file, size)) for file, size in sizes.items())


def _is_whole_tar(file: Path, size: int) -> bool:
    with file.open("rb") as stream:
        stream.seek(max(0, size - len(_TAR_END)))
        return stream.read() == _TAR_END


def _is_whole_parquet(file: Path, size: int) -> bool:
    with file.open("rb") as stream:
        stream.seek(max(0, size - 4))
        return stream.read() == b"PAR1"


def _is_whole_tfrecord(file: Path, size: int) -> bool:
    """Follow the records from length to length: 8 bytes of length, 4 of its checksum, the data, 4 of its checksum."""
    at = 0
    with file.open("rb", buffering=0) as stream:
        while at < size:
            stream.seek(at)
            header = stream.read(12)
            if len(header) < 12:
                return False
            at += 12 + struct.unpack("<Q", header[:8])[0] + 4
    return at == size


_WHOLE = {"shards": _is_whole_tar, "parquet": _is_whole_parquet, "tfrecord": _is_whole_tfrecord}
