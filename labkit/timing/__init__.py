"""Timing of steps: clocks, warm-up to a steady state, blocks, queries, peak memory. Knows no network or workload."""

from labkit.timing.blocks import ENERGY_WINDOW_S, LONGEST_GAP_S, Blocks, Timing, time_blocks
from labkit.timing.clocks import Clock, CudaClock, HostClock
from labkit.timing.queries import time_queries
from labkit.timing.state import (
    begin_anew,
    free_memory,
    peak_memory,
    quiet_collector,
    reset_compiler,
    reset_peak_memory,
)

__all__ = [
    "ENERGY_WINDOW_S",
    "LONGEST_GAP_S",
    "Blocks",
    "Clock",
    "CudaClock",
    "HostClock",
    "Timing",
    "begin_anew",
    "free_memory",
    "peak_memory",
    "quiet_collector",
    "reset_compiler",
    "reset_peak_memory",
    "time_blocks",
    "time_queries",
]
