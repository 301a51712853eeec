"""Counters of what a process and its children read, wrote and used, and of the network beside them.

The kernel adds the counters of a child that has ended to those of its parent, when the parent waits for it. The sum
over the living processes of a tree therefore includes ended ones. It misses a process that nobody of the tree waited
for: one whose parent ended first, or ignores SIGCHLD. Processes that begin or end during a reading are read again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import psutil

PROC = Path("/proc")
PERIOD_S = 0.5
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Counters at one moment, or the difference of two. None is a value that can't be read.

    `asked_bytes` counts bytes that read calls returned, `read_bytes` those that came from a disk (also through a memory
    map). `received_bytes` and `sent_bytes` count the host but its loopback: other programs' bytes too.
    `peak_rss_bytes` is the largest sum of resident memory so far, at the readings of its `Counters`; processes count
    the memory that they share once each. A difference keeps the later peak.
    """

    time_s: float
    asked_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None

    def __sub__(self, earlier: Snapshot) -> Snapshot:
        """Return what was counted since `earlier`."""
        values: dict[str, Any] = {}
        for name in (each.name for each in fields(self)):
            now, then = getattr(self, name), getattr(earlier, name)
            values[name] = None if now is None or then is None else now - then
        return Snapshot(**values | {"peak_rss_bytes": self.peak_rss_bytes})


class Counters:
    """Counters of this process with its children, and of the host's network."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._peak_bytes = 0
        self._lock = threading.Lock()  # of the peak: a Series reads in a thread of its own

    def now(self) -> Snapshot:
        """Return the counters of this moment. Only Linux has those of processes."""
        values: dict[str, Any] = {}
        for names, read in (
            (("asked_bytes", "read_bytes", "written_bytes"), lambda: self._sum(_io)),
            (("minor_faults", "major_faults", "cpu_s", "peak_rss_bytes"), self._usage),
            (("received_bytes", "sent_bytes"), _of_network),
        ):
            with suppress(OSError, LookupError, ValueError, psutil.Error):
                values |= dict(zip(names, read(), strict=True))
        return Snapshot(time_s=time.monotonic(), **values)

    def _usage(self) -> tuple[float, ...]:
        *counted, rss_bytes = self._sum(_stat)
        with self._lock:
            self._peak_bytes = max(self._peak_bytes, int(rss_bytes))
            return (*counted, self._peak_bytes)

    def _sum(self, read: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
        """Return the sums over the tree, read again while its processes change: one may count twice or not at all."""
        before = self._pids()
        for last in (attempt == _ATTEMPTS - 1 for attempt in range(_ATTEMPTS)):
            rows = []
            for pid in before:
                try:
                    rows.append(read(pid))
                except (FileNotFoundError, ProcessLookupError):
                    if pid == self._root.pid:
                        raise
            if last or (after := self._pids()) == before:
                break
            before = after
        return tuple(map(sum, zip(*rows, strict=True)))

    def _pids(self) -> list[int]:
        return [self._root.pid, *sorted(child.pid for child in self._root.children(recursive=True))]


def _io(pid: int) -> tuple[float, ...]:
    """Return asked, read and written bytes of a process, its ended threads and the children it waited for."""
    values = dict(line.split(": ") for line in (PROC / str(pid) / "io").read_text("ascii").splitlines())
    return tuple(int(values[name]) for name in ("rchar", "read_bytes", "write_bytes"))


def _stat(pid: int) -> tuple[float, ...]:
    """Return minor and major faults and CPU seconds, with those of the children it waited for, and RSS in bytes."""
    text = (PROC / str(pid) / "stat").read_text("utf-8", errors="replace")
    rest = [int(value) for value in text.rpartition(")")[2].split()[1:]]  # proc(5), from field 4; a name may have ")"
    minor, children_minor, major, children_major, *ticks = rest[6:14]
    cpu_s = sum(ticks) / os.sysconf("SC_CLK_TCK")
    return minor + children_minor, major + children_major, cpu_s, rest[20] * os.sysconf("SC_PAGE_SIZE")


def _of_network() -> tuple[int, int]:
    links = [link for name, link in psutil.net_io_counters(pernic=True).items() if name != "lo"]
    if not links:
        raise LookupError("the host has no network but its loopback")
    return sum(link.bytes_recv for link in links), sum(link.bytes_sent for link in links)


class Series:
    """Snapshots taken every `period_s` in a thread, from the start to the end of a `with` block."""

    def __init__(self, counters: Counters, *, period_s: float = PERIOD_S) -> None:
        self.snapshots: list[Snapshot] = []
        self._counters, self._period_s = counters, period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._ended.wait(self._period_s):
            self.snapshots.append(self._counters.now())

    def __enter__(self) -> Self:
        self.snapshots.append(self._counters.now())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.snapshots.append(self._counters.now())
