"""How a number is timed: clocks, warm-up to a steady state, and blocks. Knows nothing of models or workloads."""

from labkit.measure.blocks import time_blocks
from labkit.measure.clocks import Clock, CudaClock, HostClock
from labkit.measure.state import free_memory, peak_memory, reset_compiler, reset_peak_memory

__all__ = [
    "Clock",
    "CudaClock",
    "HostClock",
    "free_memory",
    "peak_memory",
    "reset_compiler",
    "reset_peak_memory",
    "time_blocks",
]
