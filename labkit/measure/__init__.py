"""Timing of steps: clocks, warm-up to a steady state, blocks, queries, memory, traces. Knows no model or workload."""

from labkit.measure.blocks import ENERGY_WINDOW_S, LONGEST_GAP_S, time_blocks
from labkit.measure.clocks import Clock, CudaClock, HostClock
from labkit.measure.keras_state import free_keras, peak_memory_of_keras, reset_peak_of_keras
from labkit.measure.queries import time_queries
from labkit.measure.state import (
    begin_anew,
    free_memory,
    peak_memory,
    quiet_collector,
    reset_compiler,
    reset_peak_memory,
)
from labkit.measure.trace import (
    TRACE_LIMIT_S,
    WARM_UP_STEPS,
    Analysis,
    Held,
    UntracedError,
    memory_of_step,
    take_trace,
)

__all__ = [
    "ENERGY_WINDOW_S",
    "LONGEST_GAP_S",
    "TRACE_LIMIT_S",
    "WARM_UP_STEPS",
    "Analysis",
    "Clock",
    "CudaClock",
    "Held",
    "HostClock",
    "UntracedError",
    "begin_anew",
    "free_keras",
    "free_memory",
    "memory_of_step",
    "peak_memory",
    "peak_memory_of_keras",
    "quiet_collector",
    "reset_compiler",
    "reset_peak_memory",
    "reset_peak_of_keras",
    "take_trace",
    "time_blocks",
    "time_queries",
]
