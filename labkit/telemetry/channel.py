"""A channel: one reading function with its period, and what becomes of its failures.

A reading that this machine lacks raises MissingError: it is said once and never tried again. Any other failure is tried
once more; what fails then opens a gap, which ends with the next reading that succeeds and is reported as a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FIRST = 0.1  # of a period from a first call, which has nothing to tell, to one that has
Reading = tuple[str, str, float, float]  # source, metric, monotonic seconds, value
Gap = tuple[str, list[str], float, float, str]  # source, metrics, from, to, reason


class MissingError(Exception):
    """This machine has no such reading; the text says why."""


class ReadingError(Exception):
    """The reading failed this time."""


Values = Sequence[float | MissingError | None]  # None: no value this time; a MissingError: of this metric, never any


@dataclass
class Report:
    """What the channels gave since it was last sent."""

    readings: list[Reading] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    missing: list[tuple[str, str, str]] = field(default_factory=list)  # source, metric, reason


class Channel:
    """Reads `metrics` of one source together, every `period_s`."""

    def __init__(self, source: str, metrics: Sequence[str], period_s: float, read: Callable[[], Values]) -> None:
        self.source, self.period_s = source, period_s
        self.metrics = list(metrics)
        self.due_s = 0.0
        self.gone = False  # nothing is left to read
        self._read = read
        self._lacking: set[str] = set()  # metrics that were said to be missing while others are read
        self._gap: tuple[float, str] | None = None
        self._last_s: float | None = None

    def sample(self, now: Callable[[], float], report: Report) -> None:
        """Read once, and plan the next reading."""
        try:
            try:
                values = self._attempt()
            except ReadingError:
                values = self._attempt()
                if _nothing(values):
                    raise
        except (MissingError, ReadingError) as reason:
            if isinstance(reason, MissingError) and self._last_s is None:
                self.gone = True
                report.missing += [(self.source, metric, str(reason)) for metric in self.metrics]
                return
            if self._gap is None:  # what was once read and now is not is a gap, whatever the driver calls it
                self._gap = (self._last_s if self._last_s is not None else now(), str(reason))
            self.due_s = next_moment(self.period_s, now())
            return
        at = now()
        if _nothing(values):  # proves nothing: it ends no gap, and what comes may still be MissingError
            self.due_s = next_moment(self.period_s, at, FIRST)
            return
        if self._gap is not None:
            since, why = self._gap
            report.gaps.append((self.source, self._read_here(), since, at, why))
            self._gap = None
        for metric, value in zip(self.metrics, values, strict=True):
            if isinstance(value, MissingError):
                if metric not in self._lacking:
                    report.missing.append((self.source, metric, str(value)))
                self._lacking.add(metric)
            elif value is not None:
                report.readings.append((self.source, metric, at, value))
        self._last_s = at
        self.due_s = next_moment(self.period_s, at)

    def _attempt(self) -> Values:
        """One reading; whatever a library raises is a failure, and never the end of the process."""
        try:
            return self._read()
        except (MissingError, ReadingError):
            raise
        except Exception as error:
            raise ReadingError(f"{type(error).__name__}: {error}") from error

    def open_gap(self, now_s: float) -> Gap | None:
        """The gap that is open now, up to now."""
        if self._gap is None:
            return None
        since, why = self._gap
        return (self.source, self._read_here(), since, now_s, why)

    def _read_here(self) -> list[str]:
        """Its metrics but those that are missing."""
        return [metric for metric in self.metrics if metric not in self._lacking]


def next_moment(period_s: float, now_s: float, least: float = 0.5) -> float:
    """When to read or send next: at a multiple of the period, `least` of one away or more.

    After a punctual reading that is one period on, and late ones make no burst. What has the same period is due at the
    same moments, and at those of longer ones, since waking the process costs more than most readings do.
    """
    return (math.floor(now_s / period_s + least) + 1) * period_s


def _nothing(values: Values) -> bool:
    """Whether a call succeeded and had no value to give, as the first of two samples."""
    return all(value is None for value in values)
