"""How computation and exchange lay beside each other in a few steps, of events one by one.

On GPUs computing and exchanging are kernels: NCCL's, and all others. A kernel of NCCL waits on its device for those of
the other devices, so the time of an exchange holds the waiting for a rank that is late. On a CPU there are no kernels:
there PyTorch's operators compute, and Gloo exchanges in threads of its own, on the same cores. What it hides there
is time, and not work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from labkit.measure.trace.events import KINDS, ON_DEVICE, STEP, Event, UntracedError

Span = tuple[float, float]


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
