"""Read the records of a folder or an archive into a private folder, without trusting a name or a size in it."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from labkit.errors import UserError, one_of

# What is read, below a folder with the profile's name. Everything else, such as pages and logs, is left where it is.
_WANTED = re.compile(
    r"(?:records/[0-9a-f]{12}/\w+\.jsonl(?:\.gz)?|hosts/[0-9a-f]{12}\.json|telemetry/[0-9a-f]{12}/\w+\.parquet)"
)
_PATTERNS = ("records/*/*.jsonl*", "hosts/*.json", "telemetry/*/*.parquet")
MOST_MEMBERS = 20_000
MOST_BYTES = 2**30  # of the archive and all of its members together; a profile has 10 MB
LARGEST_BYTES = 2**27  # of a member
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError)


class _Member(NamedTuple):
    name: str
    size_bytes: int
    is_plain: bool  # neither a link nor a device
    opened: Callable[[], Any]


def stage(source: Path, into: Path, hw: str = "") -> list[str]:
    """Copy the records of `source` to `into/<profile>/` and return the profiles; with `hw` that profile alone.

    `source` is a folder of reports, the folder of one profile, or an archive of either; `hw` may name the profile of
    the latter. Raise UserError for a source that is unsafe, damaged, too large or without records.
    """
    if not source.exists():
        raise UserError(f"FROM={source} does not exist; give a folder of reports or an archive (.tar, .tar.gz, .zip).")
    try:
        profiles = sorted(set(_copied(source, into)))
    except _DAMAGE as error:
        why = str(error).strip() or type(error).__name__
        raise UserError(f"{source.name} can't be read ({why}): ask for the archive again, or pack it anew.") from error
    if not list(into.glob("*/records/*/*")):
        raise UserError(
            f"{source.name} holds no records: give a folder or an archive with records/<machine>/<study>.jsonl.gz and "
            "hosts/<machine>.json in it, such as reports/ or reports/h100."
        )
    if hw and hw not in profiles and len(profiles) == 1:
        (into / profiles[0]).rename(into / hw)
        return [hw]
    return [one_of("HW", hw, profiles, hint=f"{source.name} has no others.")] if hw else profiles


def _copied(source: Path, into: Path) -> Iterator[str]:
    """Copy the wanted members of a source, and yield the profile of each."""
    sizes = Counter(unpacked=source.stat().st_size)
    top = source.absolute().name.partition(".")[0]
    for member in _members(source, top):
        path = PurePosixPath(member.name)
        if not member.is_plain or path.is_absolute() or ".." in path.parts or "\\" in member.name:
            name = member.name.removeprefix(f"{top}/")
            raise UserError(
                f"{source.name} is unsafe: its member {name!r} is a link, a device or outside its folder. Nothing was "
                "taken; ask for an archive of plain files."
            )
        sizes.update(members=1, unpacked=member.size_bytes)
        if sizes["members"] > MOST_MEMBERS or sizes["unpacked"] > MOST_BYTES or member.size_bytes > LARGEST_BYTES:
            raise UserError(
                f"{source.name} is too large: it holds more than {MOST_MEMBERS:,} files, {MOST_BYTES / 2**30:.0f} GiB, "
                f"or {LARGEST_BYTES / 2**20:.0f} MiB in one of them. Nothing was taken; pack records, hosts and "
                "telemetry alone."
            )
        parts = path.parts
        inner = next((n for n in (2, 3) if len(parts) > n and _WANTED.fullmatch("/".join(parts[-n:]))), None)
        if inner is None:
            continue
        target = into / parts[-inner - 1] / "/".join(parts[-inner:])
        if target.exists():
            raise UserError(
                f"{source.name} holds {member.name} twice. Nothing was taken; ask for one report's archive."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.opened() as content, target.open("wb") as file:
            shutil.copyfileobj(content, file)
        yield parts[-inner - 1]


def _members(source: Path, top: str) -> Iterator[_Member]:
    """Yield the files of a folder or an archive, all below the folder `top`."""
    if source.is_dir():
        for path in sorted(path for pattern in _PATTERNS for path in source.rglob(pattern)):
            about, name = path.lstat(), f"{top}/{path.relative_to(source).as_posix()}"
            yield _Member(name, about.st_size, stat.S_ISREG(about.st_mode), partial(path.open, "rb"))
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            for entry in archive.infolist():
                plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG)
                if not entry.is_dir():
                    yield _Member(_below(top, entry.filename), entry.file_size, plain, partial(archive.open, entry))
    else:
        packed = source.open("rb").read(2) == b"\x1f\x8b"
        with (
            gzip.open(source) if packed else source.open("rb") as file,
            tarfile.open(fileobj=_Bounded(file), mode="r:") as tar,
        ):
            for info in tar:
                if not info.isdir():
                    yield _Member(_below(top, info.name), info.size, info.isreg(), partial(tar.extractfile, info))


class _Bounded(io.BufferedReader):
    """A file of which no more is read at once than a member may have: tarfile reads headers whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes. Raise ReadError for too many."""
        if size is None or not 0 <= size <= LARGEST_BYTES:
            raise tarfile.ReadError("it has a header without end")
        return super().read(size)


def _below(top: str, name: str) -> str:
    """Return a member's name below a folder; an absolute name stays as it is, and is refused."""
    return name if name.startswith("/") else f"{top}/{name}"
