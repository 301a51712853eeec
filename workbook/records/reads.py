"""Epochs over images that lie in files, as a record holds them: times, and what was read, written and sent meanwhile.

Counters that the machine does not have are None. Bytes are those of all processes of the trial.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from labkit.timing.blocks import Count, Seconds


class ReadEpoch(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """One epoch. It is timed in parts of equally many steps, so that its course can be seen."""

    steps: Annotated[Count, Field(ge=1)]
    images: Count
    parts_s: Annotated[list[Seconds], Field(min_length=1)]
    waited_s: float  # in which the steps waited for their batches
    read_bytes: Count | None = None  # from storage, not from the page cache
    asked_bytes: Count | None = None  # by calls of read, from storage or the page cache; mapped files do not count
    written_bytes: Count | None = None  # to storage
    received_bytes: Count | None = None  # over the network, without the loopback
    sent_bytes: Count | None = None
    cpu_s: float | None = None
    minor_faults: Count | None = None  # page faults that needed no storage
    major_faults: Count | None = None  # page faults that waited for storage
    # Seconds since the epoch began, and the bytes read since then, by rank 0 of a team. In records of 2026-11-25, bytes
    # that readers had read ahead before the epoch began count too.
    read_at_s: list[float] = []
    read_until_bytes: list[Count] = []

    @model_validator(mode="after")
    def _has_a_whole_course(self) -> ReadEpoch:
        if len(self.read_at_s) != len(self.read_until_bytes):
            raise ValueError("read_at_s and read_until_bytes are of different lengths")
        return self

    @property
    def timed_read_bytes(self) -> int | None:
        """The bytes read while the epoch ran; all bytes of the epoch if its course is unknown, None without either."""
        return self.read_until_bytes[-1] if self.read_until_bytes else self.read_bytes

    @property
    def seconds(self) -> float:
        """The time of the epoch."""
        return sum(self.parts_s)


class Reads(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Epochs over a stored set of images, from an empty page cache or a full one."""

    kind: Literal["reads"] = "reads"
    file_bytes: Count  # of the set
    cached_share_before: float | None  # of the set in the page cache before the first epoch
    skipped: Count  # images that could not be read or decoded
    peak_memory_bytes: Count | None  # of the trial's processes
    epochs: Annotated[list[ReadEpoch], Field(min_length=1)]
