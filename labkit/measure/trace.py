"""A trace of a few steps: what ran when, and how much of the exchange between devices lay behind computation.

Pure functions over events, and `trace_steps`, which alone runs a profiler. A profiler slows a step down, so no traced
step is a timed one.

On GPUs computing and exchanging are kernels: NCCL's, and all others. A kernel of NCCL waits on its device for those of
the other devices, so the time of an exchange holds the waiting for a rank that is late. On a CPU there are no kernels:
there PyTorch's operators compute, and Gloo exchanges in threads of its own, on the same cores. What it hides there
is time, and not work.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from labkit.measure.clocks import Clock, Step

Kind = Literal["kernel", "copy", "fill", "call", "operator", "range"]
Span = tuple[float, float]

# The profiler's categories in its file (the format of Chrome's tracing), as far as they are events of ours.
KINDS: dict[str, Kind] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "gpu_memset": "fill",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "cpu_op": "operator",
    "user_annotation": "range",
}
ON_DEVICE = ("kernel", "copy", "fill")
STEP = "labkit step"  # the range around each traced step
WARM_UP_STEPS = 1  # between starting the profiler and believing it: its first events cost milliseconds


class UntracedError(Exception):
    """There is no trace; the text says why."""


@dataclass(frozen=True)
class Event:
    """Something that ran: seconds from the beginning of the first traced step.

    `stream` is the CUDA stream of a kernel, copy or fill, and the host's thread of anything else.
    """

    name: str
    kind: Kind
    began_s: float
    ended_s: float
    stream: int


@dataclass(frozen=True)
class Overlap:
    """Seconds of a trace: from its first computation or exchange to its last, in any of each, in exchange alone."""

    span_s: float
    compute_s: float
    exchange_s: float
    exposed_exchange_s: float

    @property
    def hidden_exchange_share(self) -> float | None:
        """The share of the exchange during which something computed; None where nothing was exchanged."""
        return 1 - self.exposed_exchange_s / self.exchange_s if self.exchange_s else None


def exchanges(event: Event) -> bool:
    """Whether an event is gradients on their way: a kernel of NCCL, or Gloo at work."""
    return event.name.startswith("nccl" if event.kind == "kernel" else "gloo:") and event.kind in ("kernel", "range")


def computes(event: Event, *, on_gpu: bool) -> bool:
    """Whether an event computes: any other kernel, or without a GPU an operator of PyTorch."""
    if on_gpu:
        return event.kind == "kernel" and not exchanges(event)
    return event.kind == "operator" and event.name.startswith("aten::")


def overlap(events: Iterable[Event], *, on_gpu: bool) -> Overlap:
    """How computation and exchange lay beside each other, on whatever streams or threads."""
    events = list(events)
    exchanging = union(one for one in events if exchanges(one) and (one.kind == "kernel") == on_gpu)
    computing = union(one for one in events if computes(one, on_gpu=on_gpu))
    ends = [*exchanging, *computing]
    return Overlap(
        span_s=max(end for _, end in ends) - min(begin for begin, _ in ends) if ends else 0.0,
        compute_s=length_s(computing),
        exchange_s=length_s(exchanging),
        exposed_exchange_s=length_s(without(exchanging, computing)),
    )


def union(events: Iterable[Event]) -> list[Span]:
    """The stretches in which any of the events ran, in order, apart from each other."""
    found: list[Span] = []
    for begin, end in sorted((one.began_s, one.ended_s) for one in events):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def length_s(spans: Iterable[Span]) -> float:
    """Seconds of stretches that are apart from each other."""
    return sum(end - begin for begin, end in spans)


def without(spans: Iterable[Span], others: list[Span]) -> list[Span]:
    """What of the first stretches lies in none of the others; both as `union` gives them."""
    left: list[Span] = []
    for begin, end in spans:
        for other_begin, other_end in others:
            if other_end <= begin or other_begin >= end:
                continue
            if other_begin > begin:
                left.append((begin, other_begin))
            begin = max(begin, other_end)
        if begin < end:
            left.append((begin, end))
    return left


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


def events_of(rows: Iterable[dict[str, Any]]) -> list[Event]:
    """The events of a file of the profiler, whose times are microseconds."""
    return [
        Event(
            name=row["name"],
            kind=KINDS[row["cat"]],
            began_s=row["ts"] * 1e-6,
            ended_s=(row["ts"] + row["dur"]) * 1e-6,
            stream=int(row.get("args", {}).get("stream", row["tid"])),
        )
        for row in rows
        if row.get("ph") == "X" and row.get("cat") in KINDS
    ]


def of_steps(events: Iterable[Event], steps: int, *, on_gpu: bool) -> list[Event]:
    """The events of the traced steps, in order, timed from the first one's beginning; UntracedError without them.

    A device goes on after the host's last step has returned; what the host itself does then is none of the steps'.
    """
    events = sorted(events, key=lambda one: (one.began_s, one.ended_s))
    around = [one for one in events if one.kind == "range" and one.name == STEP]
    if len(around) != steps:
        raise UntracedError(f"the profiler saw {len(around)} of {steps} steps")
    zero, end = around[0].began_s, around[-1].ended_s
    kept = [one for one in events if one.began_s >= zero and (one.kind in ON_DEVICE or one.began_s < end)]
    if on_gpu and not any(one.kind == "kernel" for one in kept):
        raise UntracedError("the profiler saw no kernels: the driver may keep its tracing from users")
    return [replace(one, began_s=one.began_s - zero, ended_s=one.ended_s - zero) for one in kept]
