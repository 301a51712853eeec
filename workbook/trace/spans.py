"""Stretches of time: their unions, lengths, overlaps, gaps and nesting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbook.trace.events import Floats, Integers


@dataclass(frozen=True)
class Spans:
    """Disjoint stretches of time in ascending order, in seconds."""

    begin: Floats
    end: Floats

    @classmethod
    def union(cls, begin: Floats, end: Floats) -> Spans:
        """Return the union of the stretches. Touching stretches become one."""
        if not len(begin):
            return cls(np.zeros(0), np.zeros(0))
        order = np.argsort(begin, kind="stable")
        begin, end = begin[order], np.maximum.accumulate(end[order])
        first = np.concatenate([[True], begin[1:] > end[:-1]])
        last = np.concatenate([first[1:], [True]])
        return cls(begin[first], end[last])

    @property
    def length_s(self) -> float:
        """Total seconds of the stretches."""
        return float((self.end - self.begin).sum())

    def until(self, moments: Floats) -> Floats:
        """Return the seconds of the stretches before each moment."""
        if not len(self.begin):
            return np.zeros(len(moments))
        before = np.concatenate([[0.0], np.cumsum(self.end - self.begin)])
        last = np.searchsorted(self.begin, moments, side="right") - 1
        inside = np.minimum(moments, self.end[last]) - self.begin[last]
        return np.where(last < 0, 0.0, before[last] + inside)

    def shared_s(self, other: Spans) -> float:
        """Return the seconds that lie in both sets of stretches."""
        return float((other.until(self.end) - other.until(self.begin)).sum())

    def gaps(self, end_s: float) -> Spans:
        """Return the parts of the time from 0 to `end_s` that lie in no stretch, if any."""
        begin = np.concatenate([[0.0], self.end])
        end = np.concatenate([self.begin, [end_s]])
        longer = end > begin
        return Spans(begin[longer], end[longer])


def repeated_s(begin: Floats, end: Floats) -> float:
    """Return the seconds in which two or more stretches overlap."""
    if len(begin) < 2:
        return 0.0
    moments = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(begin), dtype=int), -np.ones(len(end), dtype=int)])
    order = np.argsort(moments, kind="stable")
    at, depth = moments[order], np.cumsum(change[order])
    return float(np.diff(at)[depth[:-1] >= 2].sum())


def within(begin: Floats, end: Floats, lane: Integers) -> Integers:
    """Return for each stretch the index of the smallest stretch of its lane around it, -1 without one.

    On one thread, operators and calls nest: an event that begins while another one runs is a part of it.
    """
    parents = np.full(len(begin), -1, dtype=np.int64)
    open_: list[int] = []  # stretches that have not ended, the smallest last
    ends: list[float] = []  # of the open stretches
    present: int | None = None
    begins, all_ends, lanes = begin.tolist(), end.tolist(), lane.tolist()
    for index in np.lexsort((-end, begin, lane)).tolist():
        if lanes[index] != present:
            open_, ends, present = [], [], lanes[index]
        while ends and ends[-1] <= begins[index]:
            open_.pop()
            ends.pop()
        if open_:
            parents[index] = open_[-1]
        open_.append(index)
        ends.append(all_ends[index])
    return parents


def own_s(begin: Floats, end: Floats, parents: Integers) -> Floats:
    """Return the seconds of each stretch without the stretches inside. `parents` is the result of `within`."""
    own = end - begin
    inner = np.flatnonzero(parents >= 0)
    outer = parents[inner]
    np.subtract.at(own, outer, np.minimum(end[inner], end[outer]) - begin[inner])
    return np.maximum(own, 0.0)


def innermost(begin: Floats, end: Floats, lane: Integers, at: Floats, at_lane: Integers) -> Integers:
    """Return for each moment on a lane the index of the smallest stretch around it, -1 without one."""
    parents = within(begin, end, lane)
    order = np.lexsort((-end, begin, lane))
    indices = np.full(len(at), -1, dtype=np.int64)
    for number in np.unique(at_lane):
        of_lane = order[lane[order] == number]
        asked = np.flatnonzero(at_lane == number)
        if not len(of_lane):
            continue
        last = np.searchsorted(begin[of_lane], at[asked], side="right") - 1
        for where, which in zip(asked.tolist(), last.tolist(), strict=True):
            index = int(of_lane[which]) if which >= 0 else -1
            while index >= 0 and end[index] < at[where]:
                index = int(parents[index])
            indices[where] = index
    return indices
