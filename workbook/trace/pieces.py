"""Pieces of a trace: a few consecutive steps with all events that belong to them.

Steps are labkit's own ranges, else PyTorch's `ProfilerStep#n`, else the whole trace as one step. Device work belongs to
the steps in which the host made its call, since a device works on after the host's last step has returned. Device work
without a call in the trace belongs to the piece if it began after the first step did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbook.trace.events import ON_DEVICE, SECTION, STEP, Events, Floats, Integers, UntracedError

PROFILER_STEP = "ProfilerStep#"
OPTIMISER_STEP = "Optimizer.step#"  # prefix of PyTorch's own range around an optimiser's step


@dataclass(frozen=True)
class Cut:
    """Events of a few steps. Time 0 is the start of the first step; by `elapsed_s`, all their work has ended."""

    events: Events
    steps: int
    elapsed_s: float
    launched_by: Integers  # index of each event's call, -1 for events without a call
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sections:
    """Stretches of time that the host spent in the sections of steps."""

    names: list[str]
    begin: Floats
    end: Floats
    number: Integers  # index in `names` of each stretch's section

    @classmethod
    def of(cls, events: Events) -> Sections:
        """Return the marked sections. Without any, return the steps of the optimiser, which PyTorch marks."""
        marked = np.flatnonzero(events.are("range") & events.named(SECTION))
        if len(marked):
            called = [events.names[name].removeprefix(SECTION) for name in events.name[marked].tolist()]
        else:
            marked = np.flatnonzero(events.are("range") & events.named(OPTIMISER_STEP))
            called = ["optimiser"] * len(marked)
        names = list(dict.fromkeys(called))
        order = np.argsort(events.began_s[marked], kind="stable")
        numbers = np.array([names.index(name) for name in called], dtype=np.int64)
        marked = marked[order]
        return cls(names, events.began_s[marked], events.ended_s[marked], numbers[order])

    def at(self, moments: Floats) -> Integers:
        """Return the section's index in `names` at each moment, -1 outside all sections."""
        if not len(self.begin):
            return np.full(len(moments), -1, dtype=np.int64)
        last = np.searchsorted(self.begin, moments, side="right") - 1
        inside = (last >= 0) & (moments <= self.end[last])
        return np.where(inside, self.number[last], -1)


def cut(events: Events, steps: int | None = None) -> Cut:
    """Return the events of a trace's steps. Raise UntracedError if it has no steps, or not `steps` steps (if given)."""
    begin, end, count, notes = _steps(events)
    if steps is not None and count != steps:
        raise UntracedError(f"the profiler saw {count} of {steps} steps")
    calls = _launches(events)
    on_device = events.are(*ON_DEVICE)
    made = np.where(calls >= 0, events.began_s[calls], events.began_s)
    has_call = on_device & (calls >= 0)
    kept = (made >= begin) & ((made < end) | (on_device & ~has_call))
    if left := int((has_call & (made < begin) & (events.ended_s > begin)).sum()):
        notes = (*notes, f"{left} kernels or copies of earlier work ran into the steps and are left out")
    place = np.where(kept, np.cumsum(kept) - 1, -1)  # of each event among the kept ones
    events, calls = events.only(kept), np.where(calls[kept] >= 0, place[calls[kept]], -1)
    last = events.ended_s[events.are(*ON_DEVICE, "operator")] if len(events) else np.zeros(0)
    over = max(end, float(last.max())) if len(last) else end
    return Cut(events.moved(-begin), count, over - begin, calls, (*events.notes, *notes))


def _steps(events: Events) -> tuple[float, float, int, tuple[str, ...]]:
    """Return the start of the first step and the end of the last one on the host, the number of steps, and notes."""
    own = np.flatnonzero(events.are("range") & events.named(STEP))
    if not len(own):
        own = np.flatnonzero(events.are("range", "operator") & events.named(PROFILER_STEP))
    if len(own):
        numbered = events.name[own] if events.names[events.name[own[0]]].startswith(PROFILER_STEP) else own
        return (
            float(events.began_s[own].min()),
            float(events.ended_s[own].max()),
            len(np.unique(numbered)),
            (),
        )
    all_ = events.only(~events.are("range"))
    if not len(all_):
        raise UntracedError("the trace holds ranges only, neither kernels nor operators")
    return (
        float(all_.began_s.min()),
        float(np.nextafter(all_.ended_s.max(), np.inf)),
        1,
        ("no steps are marked in the trace: the whole of it counts as one step",),
    )


def _launches(events: Events) -> Integers:
    """Return for each event of a device the index of the first call with its correlation, -1 without such a call."""
    calls = np.flatnonzero(events.are("call") & (events.correlation > 0))
    launches = np.full(len(events), -1, dtype=np.int64)
    if not len(calls):
        return launches
    calls = calls[np.lexsort((events.began_s[calls], events.correlation[calls]))]
    numbers, first = np.unique(events.correlation[calls], return_index=True)
    asked = np.flatnonzero(events.are(*ON_DEVICE) & (events.correlation > 0))
    at = np.minimum(np.searchsorted(numbers, events.correlation[asked]), len(numbers) - 1)
    same = numbers[at] == events.correlation[asked]
    launches[asked[same]] = calls[first[at[same]]]
    return launches
