"""Say what a file or a folder holds: a file by its first bytes, a folder by the names in it.

Messages about a file that cannot be used say first what it is. So nobody fetches a whole file again that is only of
another kind. The table has the kinds that stand in place of image sets; `puremagic` and `filetype` know far more kinds,
but neither Git LFS pointers, TFRecords, `.npz` archives nor error pages.
"""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

_TORCH = "a file of torch.save"
_FIRST_BYTES = (
    (b"version https://git-lfs", "a Git LFS pointer in place of the file (`git lfs pull` brings it)"),
    (b"\x93NUMPY", "a single array of NumPy (.npy)"),
    (b"\x1f\x8b", "compressed by gzip (unpack it with `gunzip`)"),
    (b"BZh", "compressed by bzip2 (unpack it with `bunzip2`)"),
    (b"\xfd7zXZ\x00", "compressed by xz (unpack it with `unxz`)"),
    (b'\x04"M\x18', "compressed by lz4 (unpack it with `unlz4`)"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd (unpack it with `unzstd`)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it)"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", _TORCH),  # its magic number, before PyTorch 1.6
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG", "a PNG image"),
    (b"GIF8", "a GIF image"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]|[(}\]]?(?:[dl]?p0\n|q\x00|c[a-z_.]+\n)|\(dp|\}q|\(lp")
_READ = 512  # bytes: a tar header ends there
_ENTRIES, _MEMBERS, _NAMED = 20_000, 64, 4  # looked at in a folder and in an archive; named in a message


def what_is(file: Path) -> str:
    """Return what a file is, as a noun phrase or a participle for a sentence with `is`."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(_READ)
    except OSError as error:
        return f"unreadable ({error.strerror or error})"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not size:
        return "an empty file"
    if start.startswith(b"PK"):
        return _of_zip(file)
    if start[257:262] == b"ustar":
        return _of_tar(file)
    if text.startswith((b"<!doctype html", b"<html")):
        return "a web page (HTML)"
    if text.startswith((b"<?xml", b"<error>")):
        code = re.search(rb"<Code>(\w+)</Code>", start)
        return f"an error message of a server ({code[1].decode()})" if code else "an XML document"
    for first, kind in _FIRST_BYTES:
        if start.startswith(first):
            return kind
    if _is_tfrecord(start, size):
        return "a TFRecord file"
    if _PICKLE.match(start) is not None:
        return "a pickle"
    return "text" if start.isascii() and not re.search(rb"[\x00-\x08]", start) else "a file of an unknown kind"


def _of_zip(file: Path) -> str:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except Exception:  # noqa: BLE001 - zipfile raises nearly anything for a damaged archive
        return "a zip archive without its end"
    if names and all(name.endswith(".npy") for name in names):
        return f"an .npz archive of {_listed([name.removesuffix('.npy') for name in names])}"
    if any(name.endswith("/data.pkl") for name in names):
        return _TORCH
    return f"a zip archive of {_listed(names)} (unpack it)"


def _of_tar(file: Path) -> str:
    endings: Counter[str] = Counter()
    # tarfile raises nearly anything; members before the damage tell the kind
    with suppress(Exception), tarfile.open(file, "r:") as archive:
        while sum(endings.values()) < _MEMBERS and (member := archive.next()):
            if member.isfile():
                endings[Path(member.name).suffix or member.name] += 1
    return f"a tar archive of files that end in {_listed([*endings])}"


def _is_tfrecord(start: bytes, size: int) -> bool:
    """Return whether a file begins with a length and that length's masked CRC-32C, as records of TensorFlow do."""
    crc = 0xFFFFFFFF
    for byte in start[:8]:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return size > 16 and int.from_bytes(start[8:12], "little") == masked


def contents(folder: Path) -> str:
    """Return what a folder holds: the first names of its folders, and per ending the number of files and their kind."""
    folders: list[str] = []
    examples: dict[str, str] = {}
    counts = Counter[str]()
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_ENTRIES), entries, strict=False):
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                    continue
                ending = Path(entry.name).suffix
                counts[ending] += 1
                examples[ending] = min(entry.name, examples.get(ending, entry.name))
    except OSError as error:
        return f"nothing that can be read ({error.strerror or error})"
    parts = (
        [f"{len(folders):,} folder{'s' if len(folders) > 1 else ''} ({_listed(sorted(folders))})"] if folders else []
    )
    for ending, count in counts.most_common(_NAMED):
        name = examples[ending]
        of_kind = f"{count:,} files {ending}, such as {name}" if count > 1 else name
        parts.append(f"{of_kind} ({what_is(folder / name)})")
    return "; ".join(parts) or "nothing"


def _listed(names: list[str]) -> str:
    """Return the first names, each in full, and `…` for the others."""
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "") or "nothing"
