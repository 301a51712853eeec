"""Steps under PyTorch's profiler. It slows a step down, so no traced step is a timed one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.measure.clocks import Clock, Step
from labkit.measure.trace.events import STEP, Event, UntracedError
from labkit.measure.trace.overlap import events_of, of_steps

WARM_UP_STEPS = 1  # between starting the profiler and believing it: its first events cost milliseconds


def trace_steps(step: Step, clock: Clock, steps: int, *, on_gpu: bool) -> list[Event]:
    """Run `step` `steps` times under PyTorch's profiler, after one more that only warms the profiler up.

    UntracedError where the profiler can't do it; what a step raises is raised, and the profiler is stopped.
    """
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    if lacking := [one.name for one in activities if one not in profiler.supported_activities()]:
        raise UntracedError(f"this build of PyTorch traces no {lacking[0]} activity")

    def marked() -> None:
        with profiler.record_function(STEP):
            step()

    tracer = profiler.profile(
        activities=activities, schedule=profiler.schedule(wait=0, warmup=1, active=1, repeat=1), acc_events=True
    )
    try:
        with _told("start"):
            tracer.start()
        clock.time_block(marked, WARM_UP_STEPS)
        with _told("begin to record"):
            tracer.step()
        clock.time_block(marked, steps)
    except BaseException:
        with suppress(Exception):
            tracer.stop()
        raise
    with _told("stop"):
        tracer.stop()
    with _told("write what it saw"), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        tracer.export_chrome_trace(str(file))
        rows = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return of_steps(events_of(rows), steps, on_gpu=on_gpu)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever the profiler raises is no failure of the trial."""
    try:
        yield
    except Exception as error:
        raise UntracedError(f"the profiler did not {what}: {type(error).__name__}: {error}") from error
