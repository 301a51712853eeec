"""A piece of a trace: a few steps in a row with everything that belongs to them.

Steps are labkit's own ranges, else PyTorch's `ProfilerStep#n`, else the whole trace counts as one. What a device does
belongs to the steps in which its call was made: a device goes on after the host's last step has returned. Of what has
no call in the trace everything counts that began after the first step did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.measure.trace.events import ON_DEVICE, SECTION, STEP, Events, Floats, Integers, UntracedError

PROFILER_STEP = "ProfilerStep#"
OPTIMISER_STEP = "Optimizer.step#"  # the range that PyTorch itself puts around an optimiser's step


@dataclass(frozen=True)
class Cut:
    """The events of some steps, timed from the first one's beginning until the last of them is over."""

    events: Events
    steps: int
    elapsed_s: float
    launched_by: Integers  # for each event the index of its call, -1 where there is none
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sections:
    """When the host was in which section of a step."""

    names: list[str]
    begin: Floats
    end: Floats
    number: Integers  # of each of them, in `names`

    @classmethod
    def of(cls, events: Events) -> Sections:
        """The sections that are marked; without any, the steps of the optimiser, which PyTorch marks."""
        marked = np.flatnonzero(events.are("range") & events.named(SECTION))
        if len(marked):
            called = [events.names[one].removeprefix(SECTION) for one in events.name[marked].tolist()]
        else:
            marked = np.flatnonzero(events.are("range") & events.named(OPTIMISER_STEP))
            called = ["optimiser"] * len(marked)
        names = list(dict.fromkeys(called))
        order = np.argsort(events.began_s[marked], kind="stable")
        numbers = np.array([names.index(one) for one in called], dtype=np.int64)
        marked = marked[order]
        return cls(names, events.began_s[marked], events.ended_s[marked], numbers[order])

    def at(self, moments: Floats) -> Integers:
        """The section's number at each moment, -1 outside of all."""
        if not len(self.begin):
            return np.full(len(moments), -1, dtype=np.int64)
        last = np.searchsorted(self.begin, moments, side="right") - 1
        inside = (last >= 0) & (moments <= self.end[last])
        return np.where(inside, self.number[last], -1)


def cut(events: Events, steps: int | None = None) -> Cut:
    """The events of the steps that a trace holds; UntracedError where they are not `steps`, if that is given."""
    begin, end, count, notes = _steps(events)
    if steps is not None and count != steps:
        raise UntracedError(f"the profiler saw {count} of {steps} steps")
    calls = _launches(events)
    on_device = events.are(*ON_DEVICE)
    made = np.where(calls >= 0, events.began_s[calls], events.began_s)
    known = on_device & (calls >= 0)
    kept = (made >= begin) & ((made < end) | (on_device & ~known))
    if left := int((known & (made < begin) & (events.ended_s > begin)).sum()):
        notes = (*notes, f"{left} kernels or copies of earlier work ran into the steps and are left out")
    events, calls = events.only(kept), _renumbered(calls, kept)
    last = events.ended_s[events.are(*ON_DEVICE, "operator")] if len(events) else np.zeros(0)
    over = max(end, float(last.max())) if len(last) else end
    return Cut(events.moved(-begin), count, over - begin, calls, (*events.notes, *notes))


def _steps(events: Events) -> tuple[float, float, int, tuple[str, ...]]:
    """Where the first step begins and the last one ends on the host, and how many there are."""
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
    """For each event of a device the index of the first call with its correlation, -1 without one."""
    calls = np.flatnonzero(events.are("call") & (events.correlation > 0))
    found = np.full(len(events), -1, dtype=np.int64)
    if not len(calls):
        return found
    calls = calls[np.lexsort((events.began_s[calls], events.correlation[calls]))]
    numbers, first = np.unique(events.correlation[calls], return_index=True)
    asked = np.flatnonzero(events.are(*ON_DEVICE) & (events.correlation > 0))
    at = np.minimum(np.searchsorted(numbers, events.correlation[asked]), len(numbers) - 1)
    same = numbers[at] == events.correlation[asked]
    found[asked[same]] = calls[first[at[same]]]
    return found


def _renumbered(calls: Integers, kept: np.ndarray) -> Integers:
    """Indices of calls among the events that are kept."""
    place = np.where(kept, np.cumsum(kept) - 1, -1)
    own = calls[kept]
    return np.where(own >= 0, place[own], -1)
