"""Timing of steps: clocks, warm-up to a steady state, blocks, queries. Knows no network."""

from labkit.timing.blocks import ENERGY_WINDOW_S, LONGEST_GAP_S, Blocks, Timing, time_blocks, time_queries
from labkit.timing.clocks import Clock, CudaClock, HostClock

__all__ = [
    "ENERGY_WINDOW_S",
    "LONGEST_GAP_S",
    "Blocks",
    "Clock",
    "CudaClock",
    "HostClock",
    "Timing",
    "time_blocks",
    "time_queries",
]
