"""Clocks: one block of steps between two events, with one synchronise at its end.

Device work is asynchronous, so a host clock alone would time the launching, and a synchronise after each step would add
a stall that training does not have. A block is therefore K steps, then one synchronise; the device's own events around
the same block say how much of it the host's clock added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

Step = Callable[[], object]


class Clock(Protocol):
    """Times a block and tells the time. Tests inject a simulated one."""

    def now_s(self) -> float:
        """Seconds on a monotonic clock."""
        ...

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Run `step` `steps` times and wait for its work: (host seconds, device seconds or None without events)."""
        ...


class HostClock:
    """The host's monotonic clock, and no events: frameworks that have none, or other ones, are timed alike.

    `wait` is called at both ends of a block; it waits for a framework with a queue of its own. This is the clock of
    the telemetry process too: one for all processes of a machine.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self._wait = wait

    def now_s(self) -> float:
        """Seconds on the host's monotonic clock."""
        return time.monotonic_ns() / 1e9

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Host seconds of `steps` steps; the block starts with nothing queued and ends with everything done."""
        self._wait()
        start = time.perf_counter_ns()
        for _ in range(steps):
            step()
        self._wait()
        return (time.perf_counter_ns() - start) / 1e9, None


class CudaClock(HostClock):
    """For one CUDA device: events around the block, one synchronise, the host's clock beside them."""

    def __init__(self, device: Any = None) -> None:
        import torch

        super().__init__()
        self._torch = torch
        self._device = device

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Host and device seconds of `steps` steps; the block starts with an idle device."""
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize(self._device)
        start = time.perf_counter_ns()
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        cuda.synchronize(self._device)
        host_s = (time.perf_counter_ns() - start) / 1e9
        return host_s, begin.elapsed_time(end) / 1e3
