"""Traces made by hand: events with round times in seconds, and files in the format of PyTorch's profiler."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbook.trace import SECTION, STEP, Events, Kind
from workbook.trace.events import CODES

CATEGORIES: dict[Kind, str] = {
    "kernel": "kernel",
    "copy": "gpu_memcpy",
    "fill": "gpu_memset",
    "call": "cuda_runtime",
    "operator": "cpu_op",
    "range": "user_annotation",
}
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_g1_tensor16x8x8_kernel"
ADDITION = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> "
    ">(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
REDUCTION = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
HOST = 1  # the main thread


@dataclass(frozen=True)
class Event:
    """A row of `Events`."""

    name: str
    kind: Kind
    began_s: float
    ended_s: float
    stream: int = 0
    device: int = 0
    correlation: int = 0
    bytes: int = 0


def columns(events: Iterable[Event]) -> Events:
    """Return the events in columns, as a trace holds them."""
    events = list(events)
    names = list(dict.fromkeys(event.name for event in events))
    times = ([event.began_s for event in events], [event.ended_s for event in events])
    whole = ("stream", "device", "correlation", "bytes")
    return Events(
        names,
        np.array([names.index(event.name) for event in events], dtype=np.int64),
        np.array([CODES[event.kind] for event in events], dtype=np.int64),
        *(np.array(column, dtype=float) for column in times),
        *(np.array([getattr(event, name) for event in events], dtype=np.int64) for name in whole),
    )


def ranged(name: str, began_s: float, ended_s: float, *, thread: int = HOST) -> Event:
    """Return a range that a program has marked."""
    return Event(name, "range", began_s, ended_s, thread)


def step(began_s: float, ended_s: float) -> Event:
    """Return the range of a step of labkit."""
    return ranged(STEP, began_s, ended_s)


def section(name: str, began_s: float, ended_s: float) -> Event:
    """Return the range of a section of a step."""
    return ranged(SECTION + name, began_s, ended_s)


def call(name: str, began_s: float, ended_s: float, *, number: int = 0, thread: int = HOST) -> Event:
    """Return a call of the CUDA API."""
    return Event(name, "call", began_s, ended_s, thread, correlation=number)


def operator(name: str, began_s: float, ended_s: float, *, thread: int = HOST) -> Event:
    """Return an operator of PyTorch."""
    return Event(name, "operator", began_s, ended_s, thread)


def work(
    name: str,
    began_s: float,
    ended_s: float,
    *,
    number: int = 0,
    kind: Kind = "kernel",
    stream: int = 7,
    device: int = 0,
    size: int = 0,
) -> Event:
    """Return a kernel, copy or fill on a device."""
    return Event(name, kind, began_s, ended_s, stream, device, number, size)


def launched(name: str, at_s: float, began_s: float, ended_s: float, number: int, **more: Any) -> list[Event]:
    """Return a kernel and its launch call, which takes an eighth of a second from `at_s` on."""
    return [
        call("cudaLaunchKernel", at_s, at_s + 0.125, number=number, thread=more.pop("thread", HOST)),
        work(name, began_s, ended_s, number=number, **more),
    ]


def rows(events: list[Event]) -> list[dict[str, Any]]:
    """Return the events as the rows of a file, in microseconds, with other rows between them."""
    made: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 1, "tid": 0, "args": {"name": "python"}}
    ]
    for event in events:
        args: dict[str, Any] = {"External id": 5}
        if event.kind in ("kernel", "copy", "fill"):
            args |= {"stream": event.stream, "device": event.device}
        if event.correlation:
            args["correlation"] = event.correlation
        if event.kind in ("copy", "fill"):
            args["bytes"] = event.bytes
        row = {"ph": "X", "cat": CATEGORIES[event.kind], "name": event.name, "pid": 1, "tid": event.stream}
        times = {"ts": event.began_s * 1e6 + 5e12, "dur": (event.ended_s - event.began_s) * 1e6}
        made += [{**row, **times, "args": args}, {"ph": "s", "id": 1, "ts": 0, "cat": "ac2g", "name": "ac2g", "tid": 1}]
    return made


def text(events: list[Event]) -> str:
    """Return the text of a profiler's file."""
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}]}
    return json.dumps({**head, "traceEvents": rows(events), "traceName": "trace.json"}, indent=2)


def written(events: list[Event], file: Path) -> Path:
    """Write the profiler's file, compressed if its name ends in `.gz`, and return its path."""
    packed = text(events).encode()
    file.write_bytes(gzip.compress(packed) if file.suffix == ".gz" else packed)
    return file
