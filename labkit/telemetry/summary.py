"""Telemetry of a measurement, by windows. SI units, shares as fractions of 1.

idle_before | … build, first step … | warmup | timed (with its energy windows) | after
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

# windows in order of time; `unattached` is before any process uses the device
WINDOWS = ("unattached", "idle_before", "warmup", "timed", "after")


class _Part(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A part of the telemetry. Unknown fields are errors, and fields cannot be reassigned."""


class Statistic(_Part):
    """Time-weighted mean, smallest and largest reading of a window, and number of readings."""

    mean: float
    low: float
    high: float
    n: int


Metrics = dict[str, Statistic]


class Window(_Part):
    """One window: its time (seconds from the first timed block), and statistics of each source (`gpu0`, `host`, …)."""

    start_s: float
    length_s: float
    sources: dict[str, Metrics]
    gap_s: dict[str, float] = {}  # seconds about which nothing is known, of sources that have any


class EnergyWindow(_Part):
    """Joules of a span of the timed part, by source; None if unknown."""

    start_s: float
    length_s: float
    images: int | None
    energy_j: dict[str, float | None]


class Flagged(_Part):
    """Indices of timed blocks during which a device throttled or its clock dropped, and the reason."""

    why: str
    source: str
    blocks: list[int]


class Gap(_Part):
    """A span in which a driver did not answer: a gap, not a zero."""

    source: str
    metrics: list[str]
    start_s: float
    length_s: float
    reason: str


class Telemetry(_Part):
    """The telemetry of one measurement.

    `status` is `lost` if the sampling process did not cover all of it; its times are still valid.
    `missing` gives the reasons for metrics that this machine lacks, by source and metric (`*`: all metrics).
    """

    status: Literal["ok", "lost"]
    reason: str | None = None
    windows: dict[str, Window] = {}
    polled: dict[str, Metrics] = {}  # the timed part, as polling once a second sees it
    energy: list[EnergyWindow] = []
    energy_method: dict[str, str] = {}
    flagged: list[Flagged] = []
    gaps: list[Gap] = []
    missing: dict[str, dict[str, str]] = {}
    sampler_cpu_share: float | None = None  # of one core

    def mean(self, window: str, source: str, metric: str) -> float | None:
        """Return the mean of a metric in a window, None if it was not read."""
        statistic = self.statistic(window, source, metric)
        return None if statistic is None else statistic.mean

    def statistic(self, window: str, source: str, metric: str) -> Statistic | None:
        """Return the statistic of a metric in a window, None if it was not read."""
        part = self.windows.get(window)
        return None if part is None else part.sources.get(source, {}).get(metric)
