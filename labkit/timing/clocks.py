"""Clocks that time one block of steps between two events, with one synchronise at its end.

Device work is asynchronous: a host clock alone would time only the launches, and a synchronise after each step would
add a stall that training does not have. A block is therefore K steps, then one synchronise. Device events around the
same block show how much time the host clock added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

Step = Callable[[], object]


class Clock(Protocol):
    """Clock that times a block and tells the time. Tests inject a simulated clock."""

    def now_s(self) -> float:
        """Return seconds on a monotonic clock."""
        ...

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Run `step` `steps` times, wait, and return host seconds and device seconds (None without device events)."""
        ...


class HostClock:
    """The host's monotonic clock, without device events. It times all frameworks alike, whatever events they have.

    `wait` is called at both ends of a block: it waits for the queue of a framework that has one. The telemetry process
    reads the same clock, which all processes of a machine share.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self._wait = wait

    def now_s(self) -> float:
        """Return seconds on the host's monotonic clock."""
        return time.monotonic_ns() / 1e9

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Return host seconds of `steps` steps, and None. The queue is empty at both ends of the block."""
        self._wait()
        start = time.perf_counter_ns()
        for _ in range(steps):
            step()
        self._wait()
        return (time.perf_counter_ns() - start) / 1e9, None


class CudaClock(HostClock):
    """Clock of one CUDA device: events around the block, one synchronise, and the host clock beside the events.

    `device` None is the current device at the start of each block.
    """

    def __init__(self, device: Any = None) -> None:
        import torch

        super().__init__()
        self._torch = torch
        self._device = device

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Return host and device seconds of `steps` steps. The block starts with an idle device.

        Events and waits stay with one stream and its device, whatever device the step makes the current one.
        """
        cuda = self._torch.cuda
        stream = cuda.current_stream(self._device)
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize(stream.device)
        start = time.perf_counter_ns()
        begin.record(stream)
        for _ in range(steps):
            step()
        end.record(stream)
        cuda.synchronize(stream.device)
        host_s = (time.perf_counter_ns() - start) / 1e9
        return host_s, begin.elapsed_time(end) / 1e3
