"""Epochs over images that lie in files, as a record holds them: times, and what was read, written and sent meanwhile.

Counters that the machine does not have are None. Bytes are those of all processes of the trial.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class ReadEpoch(BaseModel, extra="forbid", frozen=True):
    """One epoch. It is timed in parts of equally many steps, so that its course can be seen."""

    steps: int
    images: int
    parts_s: list[float]
    waited_s: float  # in which the steps waited for their batches
    read_bytes: int | None = None  # from storage, not from the page cache
    asked_bytes: int | None = None  # by calls of read, from storage or the page cache; mapped files do not count
    written_bytes: int | None = None  # to storage
    received_bytes: int | None = None  # over the network, without the loopback
    sent_bytes: int | None = None
    cpu_s: float | None = None
    minor_faults: int | None = None  # page faults that needed no storage
    major_faults: int | None = None  # page faults that waited for storage
    read_at_s: list[float] = []  # seconds since the epoch began, and the bytes read up to then (by rank 0 of a team)
    read_until_bytes: list[int] = []

    @property
    def seconds(self) -> float:
        """The time of the epoch."""
        return sum(self.parts_s)


class Reads(BaseModel, extra="forbid", frozen=True):
    """Epochs over a stored set of images, from an empty page cache or a full one."""

    kind: Literal["reads"] = "reads"
    file_bytes: int  # of the set
    cached_share_before: float | None  # of the set in the page cache before the first epoch
    skipped: int  # images that could not be read or decoded
    peak_memory_bytes: int | None  # of the trial's processes
    epochs: list[ReadEpoch]
