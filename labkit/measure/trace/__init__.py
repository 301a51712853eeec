"""Traces of a few steps: taking them with a profiler, reading their files, and analysing their events.

`Analysis` takes pieces of a few steps each, as files or as events, and returns a `labkit.records.traced.Traced`. Only
`taking` runs a profiler.
"""

from labkit.measure.trace.analysis import Analysis, analyse
from labkit.measure.trace.events import SECTION, STEP, Events, Kind, UntracedError
from labkit.measure.trace.memory import Held, memory_of_step
from labkit.measure.trace.reading import read_trace
from labkit.measure.trace.taking import TRACE_LIMIT_S, WARM_UP_STEPS, take_trace

__all__ = [
    "SECTION",
    "STEP",
    "TRACE_LIMIT_S",
    "WARM_UP_STEPS",
    "Analysis",
    "Events",
    "Held",
    "Kind",
    "UntracedError",
    "analyse",
    "memory_of_step",
    "read_trace",
    "take_trace",
]
