"""The append-only store of records: one JSON line a record in `reports/<hw>/records/<host>/<study>.jsonl`.

A record is appended with one write and flushed to the disk the moment its trial ends. A line that a power loss cut
short is no record; it is dropped before the next write. A whole last line without its line break is a record. Files to
be committed are packed: `<study>.jsonl.gz` holds the same lines in a third of the space. If both files exist, packing
was interrupted or one of them was copied here, and the longer one counts. It must begin with the lines of the other.
"""

from __future__ import annotations

import gzip
import heapq
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from labkit.errors import LabkitError
from labkit.files import rewriting
from workbook.records import Record, parse_line, utc_now

PLAIN, PACKED = ".jsonl", ".jsonl.gz"
LARGEST_BYTES = 2**27  # of an unpacked file; the largest so far has 2 MB
# Path of a file -> its version and its records: a site reads each file about four times.
_READ: dict[Path, tuple[tuple[object, ...], list[Record]]] = {}


class Store:
    """The records of one report folder (`reports/<hw>`)."""

    def __init__(self, report: Path) -> None:
        self.report = report

    def path(self, host: str, study: str) -> Path:
        """Return the path of a study's records on a host: of the packed and the plain file the one with more lines.

        Without any records it is the plain file's. Raise LabkitError if each file has lines that the other lacks.
        """
        plain = self._plain(host, study)
        packed = plain.with_suffix(PACKED)
        if not (packed.is_file() and plain.is_file()):
            return packed if packed.is_file() else plain
        lines, packed_lines = (_lines(content_of(path)) for path in (plain, packed))
        if any(line != packed_line for line, packed_line in zip(lines, packed_lines, strict=False)):
            raise LabkitError(
                f"{plain} and {packed.name} beside it hold different records. Move one of them away: the next "
                f"measurement would delete the packed file."
            )
        return packed if len(packed_lines) > len(lines) else plain

    def _plain(self, host: str, study: str) -> Path:
        return self.report / "records" / host / f"{study}{PLAIN}"

    def hosts(self, study: str | None = None) -> list[str]:
        """Return the hosts that have records (of `study`, if given), sorted."""
        paths = (self.report / "records").glob(f"*/{study or '*'}{PLAIN}*")
        return sorted({path.parent.name for path in paths if path.stat().st_size})  # empty: all records moved aside

    def studies(self, host: str) -> list[str]:
        """Return the studies that have records of a host, sorted."""
        paths = (self.report / "records" / host).glob(f"*{PLAIN}*")
        return sorted({path.name.partition(".")[0] for path in paths if path.stat().st_size})

    def append(self, record: Record) -> None:
        """Append one record and flush it to the disk. Drop the remains of a broken write first.

        Raise LabkitError for a record that could not be read again: it would make the whole file unreadable.
        """
        import fcntl  # not at the top: Windows, which lacks it, can read records

        line = record.line()
        try:
            parse_line(line)
        except ValueError as error:
            raise LabkitError(f"a record of {record.study} can't be kept ({error}); nothing was written.") from error
        path = self._unpack(record.host, record.study)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _mend_tail(file)
            data = (line + "\n").encode()
            while data:  # a full disk may take a part, and fail only at the next write
                data = data[os.write(file.fileno(), data) :]
            os.fsync(file.fileno())

    def read(self, study: str, host: str) -> list[Record]:
        """Return the records of a study on a host in the order of writing, [] without any.

        Raise LabkitError if a whole line is no record of this study and host: the file was edited, and silently
        skipping a line would bias the results. Raise LabkitError for a file above `LARGEST_BYTES` too.
        """
        path = self.path(host, study)
        if not path.is_file():
            return []
        about = path.stat()  # before reading: lines that are appended meanwhile change it
        version = (study, host, about.st_ino, about.st_size, about.st_mtime_ns)
        if _READ.get(path, ((), []))[0] != version:
            _READ[path] = (version, self._parsed(path, study, host))
        return list(_READ[path][1])

    def _parsed(self, path: Path, study: str, host: str) -> list[Record]:
        records = []
        for number, line in enumerate(_lines(content_of(path)), start=1):
            try:
                record = parse_line(line)
                if (record.study, record.host) != (study, host):
                    raise ValueError(f"it is of study {record.study!r} on host {record.host!r}")
                records.append(record)
            except ValueError as error:
                problem = _first(error) if isinstance(error, ValidationError) else str(error)
                if "newer labkit" in problem:  # the file is fine
                    raise LabkitError(
                        f"{path} line {number} cannot be read here ({problem}): update this labkit."
                    ) from error
                raise LabkitError(
                    f"{path} line {number} is not a record ({problem}). Restore the file from version control, or "
                    f"move it away and measure again."
                ) from error
        return records

    def move_aside(self, study: str, host: str, scale: str) -> int:
        """Move the records of a scale into `aside/`, without deleting any, and return their number."""
        records = self.read(study, host)
        taken = [record for record in records if record.scale == scale]
        if not taken:
            return 0
        path = self._unpack(host, study)
        stamp = utc_now().replace(":", "").replace("+0000", "Z")
        aside = path.parent / "aside" / f"{study}-{scale}-{stamp}-{os.urandom(3).hex()}.jsonl"
        aside.parent.mkdir(exist_ok=True)
        _write_lines(aside, taken)
        _write_lines(path, [record for record in records if record.scale != scale])
        return len(taken)

    def merge(self, host: str, study: str, records: Sequence[Record]) -> None:
        """Write further records of a study among those here, by the times at which they began, to one packed file."""
        path = self.path(host, study)
        lines = _lines(content_of(path)) if path.is_file() else []
        present = ((record.started_at, line) for record, line in zip(self.read(study, host), lines, strict=True))
        further = ((record.started_at, record.line()) for record in records)
        together = [line for _, line in heapq.merge(present, further, key=itemgetter(0))]
        with rewriting(self._plain(host, study)) as file:
            file.writelines(f"{line}\n".encode() for line in together)
        self._plain(host, study).with_suffix(PACKED).unlink(missing_ok=True)
        self.pack(host, study)

    def pack(self, host: str, study: str) -> Path:
        """Compress a study's records for good keeping and return the packed file. The next append unpacks them."""
        plain = self._plain(host, study)
        packed = plain.with_suffix(PACKED)
        if plain.is_file() and self.path(host, study) == plain:
            # Without the time of packing: the same lines give the same file.
            with rewriting(packed) as file:
                file.write(gzip.compress(plain.read_bytes(), compresslevel=9, mtime=0))
        plain.unlink(missing_ok=True)
        return packed

    def _unpack(self, host: str, study: str) -> Path:
        """Return the plain file for adding lines, unpacked if the packed file counts. Delete the packed file."""
        plain, path = self._plain(host, study), self.path(host, study)
        if path != plain:
            with rewriting(plain) as file:
                file.write(content_of(path))
        plain.with_suffix(PACKED).unlink(missing_ok=True)
        return plain


def _first(error: ValidationError) -> str:
    """Return the first problem of a record, with its place."""
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    return ": ".join(filter(None, [".".join(map(str, problem["loc"])), message]))


def _lines(content: bytes) -> list[str]:
    """Return the whole lines of a file of records. A last line without its line break is whole if it is JSON."""
    *lines, last = content.decode("utf-8-sig", errors="replace").split("\n")
    return [*lines, last] if _is_json(last) else lines


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _mend_tail(file: Any) -> None:
    """End the last line of a file opened for appending: with its line break if the line is whole, else cut it off."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    if file.read(1) in (b"\n", b""):
        return
    file.seek(0)
    content = file.read()
    keep = content.rfind(b"\n") + 1
    if _is_json(content[keep:].decode(errors="replace")):
        file.write(b"\n")
        file.flush()
    else:
        file.truncate(keep)


def content_of(path: Path) -> bytes:
    """Return the unpacked content of a file of records. Raise LabkitError if it is damaged or too large."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise LabkitError(f"{path} cannot be unpacked ({error}). Restore the file from version control.") from error
    if len(content) > LARGEST_BYTES:
        raise LabkitError(
            f"{path} has more than {LARGEST_BYTES:,} bytes of records, and no study has as many. Restore the file from "
            "version control, or move it away."
        )
    return content


def _write_lines(path: Path, records: Iterable[Record]) -> None:
    """Write records to a file that appears whole or not at all."""
    with rewriting(path) as file:
        file.writelines((record.line() + "\n").encode() for record in records)
