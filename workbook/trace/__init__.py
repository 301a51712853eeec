"""Traces of a few steps: taking them with a profiler, reading their files, and analysing their events.

`Analysis` takes pieces of a few steps each, as files or as events, and returns a `workbook.records.traced.Traced`. Only
`profiler` runs a profiler.
"""

from workbook.trace.analysis import Analysis, analyse
from workbook.trace.events import SECTION, STEP, Events, Kind, UntracedError
from workbook.trace.files import read_trace
from workbook.trace.memory import Held, memory_of_step, plain_tensors
from workbook.trace.profiler import TRACE_LIMIT_S, WARM_UP_STEPS, take_trace

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
    "plain_tensors",
    "read_trace",
    "take_trace",
]
