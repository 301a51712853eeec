"""A channel: one reading function, its period, and the handling of its failures.

A reading that this machine lacks raises MissingError: the channel reports it once and never tries again. Any other
failure is tried once more. A second failure opens a gap, which ends and is reported with the next successful reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FIRST = 0.1  # least share of a period from a call without a value, such as a first call, to the next
Reading = tuple[str, str, float, float]  # source, metric, monotonic seconds, value
Gap = tuple[str, list[str], float, float, str]  # source, metrics, from, to, reason


class MissingError(Exception):
    """Error for a reading that this machine lacks; the message says why."""


class ReadingError(Exception):
    """Error for a reading that failed this time."""


Values = Sequence[float | MissingError | None]  # None: no value this time; MissingError: never a value of the metric


def lacking(why: str) -> Callable[[], Values]:
    """Return a reader that only reports why this machine lacks its metrics."""

    def read() -> Values:
        raise MissingError(why)

    return read


@dataclass
class Report:
    """Readings, gaps and missing metrics of the channels since the last report was sent."""

    readings: list[Reading] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    missing: list[tuple[str, str, str]] = field(default_factory=list)  # source, metric, reason


class Channel:
    """Reader of some metrics of one source, all together every `period_s` seconds."""

    def __init__(self, source: str, metrics: Sequence[str], period_s: float, read: Callable[[], Values]) -> None:
        self.source, self.period_s = source, period_s
        self.metrics = list(metrics)
        self.due_s = 0.0
        self.gone = False  # nothing is left to read
        self._read = read
        self._lacking: set[str] = set()  # metrics reported as missing while others are read
        self._gap: tuple[float, str] | None = None
        self._last_s: float | None = None

    def sample(self, now: Callable[[], float], report: Report) -> None:
        """Read once, add the result to `report`, and plan the next reading."""
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
            if self._gap is None:  # after an earlier reading, any failure is a gap, even MissingError
                self._gap = (self._last_s if self._last_s is not None else now(), str(reason))
            self.due_s = next_moment(self.period_s, now())
            return
        at = now()
        if _nothing(values):  # no evidence: a gap stays open, and MissingError may still follow
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
        """Read once. Turn any error of a library into ReadingError, so that the process goes on."""
        try:
            return self._read()
        except (MissingError, ReadingError):
            raise
        except Exception as error:
            raise ReadingError(f"{type(error).__name__}: {error}") from error

    def open_gap(self, now_s: float) -> Gap | None:
        """Return the open gap up to `now_s`, None if no gap is open."""
        if self._gap is None:
            return None
        since, why = self._gap
        return (self.source, self._read_here(), since, now_s, why)

    def _read_here(self) -> list[str]:
        """Return the metrics without those reported as missing."""
        return [metric for metric in self.metrics if metric not in self._lacking]


def next_moment(period_s: float, now_s: float, least: float = 0.5) -> float:
    """Return when to read or send next: at a multiple of the period, at least the share `least` of a period away.

    After a punctual reading that is one period later, and late readings cause no burst. Channels of equal periods share
    their moments, also with longer periods, since waking the process costs more than most readings.
    """
    return (math.floor(now_s / period_s + least) + 1) * period_s


def _nothing(values: Values) -> bool:
    """Return whether a successful call gave no value, as the first of two samples does."""
    return all(value is None for value in values)
