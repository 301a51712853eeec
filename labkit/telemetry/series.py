"""Series of readings, and statistics of them over a span of time.

Times are seconds on the host's monotonic clock. A span without readings for much longer than the sensor's period is a
gap. Gaps do not count in means, and a window with gaps in more than a tenth of it has no integral.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np

from labkit.sensors import KINDS, PERIODS_S, Kind
from labkit.telemetry.summary import Statistic

# Readings further apart than this many periods (and this many seconds) leave a gap: the sampler was stopped or starved,
# or the reading failed.
GAP_PERIODS = 5
GAP_S = 1.0
MAX_GAP_SHARE = 0.1  # of a window: with a larger share, the window has no energy
# Largest difference between the energy counter and the integral of the polled power, of the larger one.
FURTHEST_APART, FURTHEST_APART_IF_SHORT, LONG_S, SHORTEST_CHECKED_S = 0.1, 0.25, 5.0, 2.0
POLL_S = 1.0  # period of a loop around nvidia-smi

Span = tuple[float, float]


@dataclass(frozen=True)
class Energy:
    """Joules of a window and their method. If `energy_j` is None, `method` holds the reason."""

    energy_j: float | None
    method: str


class Series:
    """Readings of one metric of one source, in time order. `period_s` replaces the metric's own period."""

    def __init__(
        self,
        metric: str,
        times_s: Iterable[float],
        values: Iterable[float],
        gaps: Iterable[Span] = (),
        *,
        period_s: float | None = None,
    ) -> None:
        self.metric = metric
        self.period_s = PERIODS_S[metric] if period_s is None else period_s
        self.kind: Kind = KINDS[metric]
        self.times_s = np.asarray(list(times_s), dtype=float)
        self.values = np.asarray(list(values), dtype=float)
        self.gaps = sorted(gaps)

    def __len__(self) -> int:
        return len(self.times_s)

    def between(self, start_s: float, end_s: float) -> Series:
        """Return the readings of a span, and the reading before it."""
        first = max(int(np.searchsorted(self.times_s, start_s, side="right")) - 1, 0)
        last = int(np.searchsorted(self.times_s, end_s, side="right"))
        gaps = [(a, b) for a, b in self.gaps if b > start_s and a < end_s]
        return Series(self.metric, self.times_s[first:last], self.values[first:last], gaps, period_s=self.period_s)

    def is_gap(self, earlier_s: float, later_s: float) -> bool:
        """Return whether nothing is known between two neighbouring readings."""
        longest = max(GAP_PERIODS * self.period_s, GAP_S)
        return later_s - earlier_s > longest or any(a < later_s and b > earlier_s for a, b in self.gaps)

    def _segments(self) -> list[tuple[float, float, float, float]]:
        """Return (from, to, value at from, value at to) of neighbouring readings, without gaps."""
        neighbours = zip(pairwise(self.times_s.tolist()), pairwise(self.values.tolist()), strict=True)
        return [(a, b, there, here) for (a, b), (there, here) in neighbours if not self.is_gap(a, b)]

    def uncovered_s(self, start_s: float, end_s: float) -> float:
        """Return the seconds of a span about which nothing is known."""
        covered = sum(max(min(b, end_s) - max(a, start_s), 0.0) for a, b, _, _ in self._segments())
        # A reading holds until its sensor updates, and also covers the period before it.
        if len(self):
            slack, first, last = self.period_s, float(self.times_s[0]), float(self.times_s[-1])
            for a, b in ((first - slack, first), (last, last + slack)):
                covered += max(min(b, end_s) - max(a, start_s), 0.0)
        return max(end_s - start_s - covered, 0.0)

    def unknown_s(self, start_s: float, end_s: float) -> float:
        """Return the seconds of a span that lie in gaps, both reported by the sampler and silent."""
        silent = [(a, b) for a, b in pairwise(self.times_s.tolist()) if self.is_gap(a, b)]
        total, reached = 0.0, start_s
        for a, b in sorted([*self.gaps, *silent]):
            total += max(min(b, end_s) - max(a, reached), 0.0)
            reached = max(reached, b)
        return total

    def statistic(self, start_s: float, end_s: float) -> Statistic | None:
        """Return mean, low and high in a span; None without readings, and for counters and flags."""
        if self.kind == "average":
            return self._of_averages(start_s, end_s)
        return self._of_levels(start_s, end_s) if self.kind == "level" else None

    def _of_averages(self, start_s: float, end_s: float) -> Statistic | None:
        """Use the readings whose whole interval lies in the span; in a span too short for any, those mostly in it.

        An interval across the edge also covers time before or after the span, and its reading would be the lowest.
        """
        parts = [(max(a, start_s), min(b, end_s), b - a, value) for a, b, _, value in self._segments()]
        whole = [(b - a, value) for a, b, length, value in parts if b - a >= length * (1 - 1e-9)]
        mostly = [(b - a, value) for a, b, length, value in parts if b - a >= 0.5 * length]
        chosen = whole or mostly
        if not chosen:
            return None
        values = [value for _, value in chosen]
        mean = sum(seconds * value for seconds, value in chosen) / sum(seconds for seconds, _ in chosen)
        mean = min(max(mean, min(values)), max(values))
        return Statistic(mean=mean, low=min(values), high=max(values), n=len(values))

    def _of_levels(self, start_s: float, end_s: float) -> Statistic | None:
        """Take the mean of the line through the readings, low and high of the readings in the span."""
        inside = (self.times_s >= start_s) & (self.times_s <= end_s)
        seen = [float(value) for value in self.values[inside]]
        total = weight = 0.0
        for a, b, there, here in self._segments():
            low, high = max(a, start_s), min(b, end_s)
            if high > low:
                slope = (here - there) / (b - a)
                total += (there + slope * (0.5 * (low + high) - a)) * (high - low)
                weight += high - low
        if weight <= 0:
            return _of_readings(seen)
        mean = total / weight
        # The mean of a short window also uses readings outside it, which may lie beyond all readings inside.
        return Statistic(mean=mean, low=min([*seen, mean]), high=max([*seen, mean]), n=len(seen))

    def polled(self, start_s: float, end_s: float) -> Statistic | None:
        """Return what polling once a second would have seen: the reading that holds at each whole second."""
        seen = []
        for moment in np.arange(start_s + POLL_S, end_s + 1e-9, POLL_S):
            index = int(np.searchsorted(self.times_s, moment, side="right")) - 1
            if index < 0 or any(a <= moment < b for a, b in self.gaps):
                continue
            if moment - self.times_s[index] <= max(GAP_PERIODS * self.period_s, GAP_S):
                seen.append(float(self.values[index]))
        return _of_readings(seen)

    def growth(self, start_s: float, end_s: float, within: Series | None = None) -> float | None:
        """Return the growth of a counter in a span; None if it was not read around the span or went back.

        Between two readings it grows like the integral of `within` (polled power, for an energy counter), or evenly.
        """
        if len(self) < 2 or bool(np.any(np.diff(self.values) < 0)):
            return None
        at_start, at_end = (self._counter_at(moment, within) for moment in (start_s, end_s))
        return None if at_start is None or at_end is None else at_end - at_start

    def _counter_at(self, moment: float, within: Series | None) -> float | None:
        """Return the counter at a moment. After its last reading or before its first, only `within` can give it."""
        index = int(np.searchsorted(self.times_s, moment, side="right")) - 1
        if 0 <= index < len(self) - 1:
            a, b = float(self.times_s[index]), float(self.times_s[index + 1])
            grown = float(self.values[index + 1] - self.values[index])
            part = whole = None
            if within is not None:
                part, whole = within.integral(a, moment), within.integral(a, b)
            if part is not None and whole:
                share = part / whole
            elif moment > a and self.is_gap(a, b):
                return None  # the growth inside a gap is unknown
            else:
                share = (moment - a) / (b - a)
            return float(self.values[index]) + share * grown
        edge = len(self) - 1 if index >= 0 else 0
        at = float(self.times_s[edge])
        if moment == at:
            return float(self.values[edge])
        if within is None or abs(moment - at) > 2 * self.period_s:
            return None
        grown_since = within.integral(min(at, moment), max(at, moment))
        return None if grown_since is None else float(self.values[edge]) + math.copysign(grown_since, moment - at)

    def integral(self, start_s: float, end_s: float) -> float | None:
        """Return the trapezoid over a level, straight across gaps; None if over a tenth of the span was not read."""
        if end_s <= start_s:
            return 0.0
        if not len(self) or self.uncovered_s(start_s, end_s) > MAX_GAP_SHARE * (end_s - start_s):
            return None
        near = self.between(start_s - GAP_S, end_s + GAP_S)
        inner = near.times_s[(near.times_s > start_s) & (near.times_s < end_s)]
        moments = np.concatenate([[start_s], inner, [end_s]])
        return float(np.trapezoid(np.interp(moments, near.times_s, near.values), moments))


def _of_readings(seen: list[float]) -> Statistic | None:
    """Return the statistic of readings that hold equally long; None without readings."""
    return Statistic(mean=fmean(seen), low=min(seen), high=max(seen), n=len(seen)) if seen else None


def _agree(counted_j: float, polled_j: float, seconds: float) -> bool:
    """Return whether two readings of one energy agree. In 117 windows of 5 s on H100 and H200 they differ by 3 %."""
    if seconds < SHORTEST_CHECKED_S:
        return True  # both readings are too few
    most = FURTHEST_APART if seconds >= LONG_S else FURTHEST_APART_IF_SHORT
    return abs(counted_j - polled_j) <= most * max(counted_j, polled_j)


def energy(counter: Series | None, power: Series | None, start_s: float, end_s: float) -> Energy:
    """Return the joules of a span, from the counter if the device has one, else from the polled power.

    A counter that the polled power contradicts gives no joules: one of the two sensors is wrong.
    """
    note = ""
    if counter is not None and len(counter):
        grown = counter.growth(start_s, end_s, power)
        if grown is not None:
            polled = None if power is None or not len(power) else power.integral(start_s, end_s)
            if polled is not None and not _agree(grown, polled, end_s - start_s):
                return Energy(None, f"none: the counter says {grown:.0f} J, and the polled power {polled:.0f} J")
            return Energy(grown, "counter")
        went_back = bool(np.any(np.diff(counter.values) < 0))
        note = ", because the counter went back" if went_back else ", because the counter was not read around it"
    if power is None or not len(power):
        return Energy(None, f"none{note}" if note else "none: neither an energy counter nor power can be read here")
    integral = power.integral(start_s, end_s)
    if integral is None:
        return Energy(None, "none: the power was not read during more than a tenth of the window")
    return Energy(integral, f"trapezoid over polled power{note}")
