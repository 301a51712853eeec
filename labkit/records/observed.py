"""What was observed beside a trial: windows of telemetry as they stand in a record. SI units, shares as fractions of 1.

idle_before | … build, first step … | warmup | timed (with its energy windows) | after
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

# windows in the order of time; older records have `unattached`, before any process of a pass uses the device
WINDOWS = ("unattached", "idle_before", "warmup", "timed", "after")


class _Part(BaseModel, extra="forbid", frozen=True):
    """A part of a record: an unknown field is an error, and nothing changes it after reading."""


class Statistic(_Part):
    """Time-weighted mean, smallest and largest reading of a window, and how many readings there were."""

    mean: float
    low: float
    high: float
    n: int


Metrics = dict[str, Statistic]


class Window(_Part):
    """One window: when (seconds from the first timed block) and what each source (`gpu0`, `host`, …) did in it."""

    start_s: float
    length_s: float
    sources: dict[str, Metrics]
    gap_s: dict[str, float] = {}  # seconds of which nothing is known, by source; only where there are any


class EnergyWindow(_Part):
    """Joules of a stretch of the timed part by source; None where it could not be found."""

    start_s: float
    length_s: float
    images: int | None
    energy_j: dict[str, float | None]


class Flagged(_Part):
    """Timed blocks (their indices) during which a device throttled or its clock dropped, and why."""

    why: str
    source: str
    blocks: list[int]


class Gap(_Part):
    """A stretch in which a driver did not answer: a gap, not a zero."""

    source: str
    metrics: list[str]
    start_s: float
    length_s: float
    reason: str


class Telemetry(_Part):
    """The telemetry of one trial in one pass.

    `status` is `lost` when the sampling process was not there for the whole of the trial; the trial's times are valid
    all the same. `missing` says what this machine cannot tell, and why, by source and metric (`*`: everything).
    """

    status: Literal["ok", "lost"]
    reason: str | None = None
    windows: dict[str, Window] = {}
    polled: dict[str, Metrics] = {}  # the timed part as once-a-second polling sees it
    energy: list[EnergyWindow] = []
    energy_method: dict[str, str] = {}
    flagged: list[Flagged] = []
    gaps: list[Gap] = []
    missing: dict[str, dict[str, str]] = {}
    sampler_cpu_share: float | None = None  # of one core

    def mean(self, window: str, source: str, metric: str) -> float | None:
        """The mean of a metric in a window; None where it was not read."""
        statistic = self.statistic(window, source, metric)
        return None if statistic is None else statistic.mean

    def statistic(self, window: str, source: str, metric: str) -> Statistic | None:
        """A metric in a window; None where it was not read."""
        found = self.windows.get(window)
        return None if found is None else found.sources.get(source, {}).get(metric)
