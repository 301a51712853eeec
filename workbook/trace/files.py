"""Reader of files of PyTorch's profiler, row by row.

A file of a gigabyte has millions of rows. A third are no events, but arrows between calls and kernels. As Python
objects, the file would take ten times its size. So each row is decoded, its few numbers go into columns, and the row is
discarded. Python's own decoder takes rows one by one from a buffer of a megabyte. ijson with its C back end does the
same in 1.2 times the time: another package would spare twenty lines and gain nothing. Both read a file that was cut off
up to the cut.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from workbook.trace.events import KINDS, Columns, Events, UntracedError

CHUNK_BYTES = 1 << 20
LONGEST_ROW = 1 << 24  # characters; a longer row is a damaged one
GZIP = b"\x1f\x8b"
_ROWS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_DECODE = json.JSONDecoder(strict=False).raw_decode
TAKE_ONE = "a trace is what torch.profiler's export_chrome_trace writes (.json or .json.gz)"


def read_trace(path: str | Path) -> Events:
    """Return the events of a file, timed from the first. Raise UntracedError, with one sentence, if it is no trace.

    A file that ends in the middle is read up to there, and `notes` says so.
    """
    path = Path(path)
    rows, columns, broken, zero_us = _Rows(path), Columns(), 0, None
    for row in rows:
        category = row.get("cat") if row.get("ph") == "X" else None
        kind = KINDS.get(category.lower()) if isinstance(category, str) else None
        if kind is None:
            continue
        try:
            first_us = float(row["ts"]) if zero_us is None else zero_us
            if not math.isfinite(first_us):
                raise ValueError("the first time is no number")
            columns.add_row(row, kind, first_us)
            zero_us = first_us
        except (KeyError, TypeError, ValueError, OverflowError):
            broken += 1
    notes = [f"{broken} rows without a name, a time or a length are left out"] if broken else []
    if rows.cut:
        notes.append(
            f"the file ends in the middle: {len(columns)} events before that were read, and what follows is missing"
        )
    if not len(columns):
        end = " before it ends in the middle" if rows.cut else ""
        raise UntracedError(f"{path.name} holds no event of a device or of PyTorch{end}; {TAKE_ONE}.")
    return columns.events(tuple(notes))


class _Rows:
    """The rows of a file. After the last row, `cut` says whether the file ends in the middle."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.cut = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._opened() as file:
            texts = self._texts(file)
            yield from self._decoded(self._begin(texts), texts)

    def _opened(self) -> BinaryIO:
        try:
            with self._path.open("rb") as file:
                magic = file.read(2)
            if not magic:
                raise UntracedError(f"{self._path.name} is empty; {TAKE_ONE}.")
            return gzip.open(self._path) if magic == GZIP else self._path.open("rb")  # type: ignore[return-value]
        except OSError as error:
            raise UntracedError(f"{self._path} can't be read: {error.strerror or error}; {TAKE_ONE}.") from None

    def _texts(self, file: BinaryIO) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            try:
                read = file.read(CHUNK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile):  # a compressed file that was cut off
                return
            if not read:
                return
            yield decoder.decode(read)

    def _begin(self, texts: Iterator[str]) -> str:
        """Return the text from the first row on. Raise UntracedError if the file is no trace."""
        seen, first = "", ""
        for text in texts:
            seen += text
            first = first or seen.lstrip()[:1]
            if first == "[":  # Chrome's format also allows rows without a head
                return seen.lstrip()[1:]
            if first not in ("{", ""):
                raise UntracedError(f"{self._path.name} is no JSON; {TAKE_ONE}.")
            if match := _ROWS.search(seen):
                return seen[match.end() :]
            seen = seen[-100:]
        raise UntracedError(f"{self._path.name} has no traceEvents, so it is no trace; {TAKE_ONE}.")

    def _decoded(self, text: str, texts: Iterator[str]) -> Iterator[dict[str, Any]]:
        at = 0
        while True:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                return
            try:
                row, at = _DECODE(text, at)
            except json.JSONDecodeError:  # the row continues in the next megabyte, or never ends
                more = next(texts, None) if len(text) - at < LONGEST_ROW else None
                if more is None:
                    self.cut = True
                    return
                text, at = text[at:] + more, 0
                continue
            if isinstance(row, dict):
                yield row
