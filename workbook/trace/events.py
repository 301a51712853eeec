"""Events of a trace: kernels, copies, fills, calls, operators and ranges, each with its start and end.

Events are stored in columns: a large file has millions of events, and each query is about all of them at once.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from labkit.errors import UserError

Kind = Literal["kernel", "copy", "fill", "call", "operator", "range"]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CODES: dict[Kind, int] = {"kernel": 0, "copy": 1, "fill": 2, "call": 3, "operator": 4, "range": 5}
ON_DEVICE: tuple[Kind, ...] = ("kernel", "copy", "fill")
# Kinds of the profiler's categories, in lower case; other categories are ignored. PyTorch before 1.11 writes the short
# forms without `gpu_`, `cuda_` and `cpu_`.
KINDS: dict[str, Kind] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "fill",
    "memset": "fill",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
    "cpu_op": "operator",
    "operator": "operator",
    "user_annotation": "range",
}
COLUMNS = ("name", "code", "began_s", "ended_s", "stream", "device", "correlation", "bytes")
LARGEST = 2.0**53  # a double holds whole numbers below it exactly
UNKNOWN = -1  # value of `bytes` where the trace gives no size
STEP = "labkit step"  # the range around each traced step
SECTION = "labkit section: "  # prefix of the ranges of a step's sections; the section's name follows


class UntracedError(UserError):
    """Error for a missing trace, or a trace without anything to analyse; the message says why."""


@dataclass(frozen=True)
class Events:
    """Events in columns of equal length, in seconds from a common origin; `names[name[i]]` is the name of event i.

    `stream` is the CUDA stream of a kernel, copy or fill, and the host thread of any other event. A kernel and the call
    that launched it have the same `correlation`, which is 0 for events without one.

    `External id` is not read: before PyTorch 2.1, calls and operators are numbered differently. The time and the thread
    of a kernel's call tell which operator launched the kernel.
    """

    names: list[str]
    name: Integers
    code: Integers  # values of CODES
    began_s: Floats
    ended_s: Floats
    stream: Integers
    device: Integers
    correlation: Integers
    bytes: Integers
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    def are(self, *kinds: Kind) -> Mask:
        """Return a mask of the events of one of the kinds."""
        return np.isin(self.code, [CODES[kind] for kind in kinds])

    def named(self, *beginnings: str) -> Mask:
        """Return a mask of the events whose names have one of the beginnings."""
        fits = np.array([name.startswith(beginnings) for name in self.names], dtype=bool)
        return fits[self.name] if len(self.names) else np.zeros(len(self), dtype=bool)

    def only(self, mask: Mask | Integers) -> Events:
        """Return the events that a mask or indices select."""
        return replace(self, **{column: getattr(self, column)[mask] for column in COLUMNS})

    def moved(self, seconds: float) -> Events:
        """Return the same events, later by `seconds`."""
        return replace(self, began_s=self.began_s + seconds, ended_s=self.ended_s + seconds)

    @property
    def length_s(self) -> Floats:
        """Duration of each event, in seconds."""
        return self.ended_s - self.began_s


class Columns:
    """Events under construction, 64 bytes each. Doubles hold integers up to 2^53 exactly; all values are below."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values) // 8

    def add_row(self, row: dict[str, Any], kind: Kind, zero_us: float) -> None:
        """Add a row of the profiler's file, whose times are microseconds; `zero_us` becomes time 0.

        Raise KeyError, TypeError, ValueError or OverflowError if a value is missing or invalid, and add nothing then.
        """
        args = row.get("args") or {}
        if not isinstance(row["name"], str) or not isinstance(args, dict):
            raise TypeError("a name is text, and arguments have names")
        began_us = row["ts"] - zero_us
        if not (math.isfinite(began_us) and math.isfinite(row["dur"]) and row["dur"] >= 0):
            raise ValueError("a time is a number, and no length is below 0")
        thread = args.get("stream", row.get("tid"))
        thread = thread if isinstance(thread, int) else hash(thread) % (1 << 31)
        device, correlation, size = args.get("device", 0), args.get("correlation", 0), args.get("bytes", UNKNOWN)
        if not abs(thread) + abs(device) + abs(correlation) + abs(size) < LARGEST:  # nor NaN
            raise ValueError("a device, a stream, a correlation and a size are whole numbers")
        values = (
            began_us * 1e-6,
            (began_us + row["dur"]) * 1e-6,
            self._names.setdefault(row["name"], len(self._names)),
            CODES[kind],
            thread,
            device,
            correlation,
            size,
        )
        self._values.extend(array("d", values))

    def events(self, notes: tuple[str, ...] = ()) -> Events:
        """Return the added rows as events, with `notes`."""
        began, ended, *whole = np.frombuffer(self._values).reshape(-1, 8).T if len(self) else np.zeros((8, 0))
        name, code, stream, device, correlation, size = (column.astype(np.int64) for column in whole)
        return Events(
            list(self._names), name, code, began.copy(), ended.copy(), stream, device, correlation, size, notes
        )
