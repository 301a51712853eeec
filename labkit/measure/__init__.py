"""How a number is timed: clocks, warm-up to a steady state, and blocks. Knows nothing of models or workloads."""

from labkit.measure.blocks import ENERGY_WINDOW_S, LONGEST_GAP_S, time_blocks
from labkit.measure.clocks import Clock, CudaClock, HostClock
from labkit.measure.queries import time_queries
from labkit.measure.state import free_memory, peak_memory, quiet_collector, reset_compiler, reset_peak_memory
from labkit.measure.trace import UntracedError, overlap, trace_steps

__all__ = [
    "ENERGY_WINDOW_S",
    "LONGEST_GAP_S",
    "Clock",
    "CudaClock",
    "HostClock",
    "UntracedError",
    "free_memory",
    "overlap",
    "peak_memory",
    "quiet_collector",
    "reset_compiler",
    "reset_peak_memory",
    "time_blocks",
    "time_queries",
    "trace_steps",
]
