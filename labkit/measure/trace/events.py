"""What a trace holds: kernels, copies, fills, calls, operators and ranges, each with its stretch of time.

Events stand in columns: a large file has millions of them, and what is asked of them is asked of all at once.
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
# The profiler's categories in its file, in lower case, as far as they are events of ours. Those without `gpu_`, `cuda_`
# or `cpu_` are of PyTorch before 1.11.
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
UNKNOWN = -1  # bytes, where the trace does not say how many
STEP = "labkit step"  # the range around each traced step
SECTION = "labkit section: "  # ranges of a step's sections; the name of one follows


class UntracedError(UserError):
    """There is no trace, or none that says anything; the text says why."""


@dataclass(frozen=True)
class Events:
    """Events in columns of one length, in seconds from any common moment; `names[name[i]]` is the name of the i-th.

    `stream` is the CUDA stream of a kernel, copy or fill, and the host's thread of anything else. A kernel and the call
    that launched it have the same `correlation`, which is 0 where there is none.

    There is no `External id`: in PyTorch before 2.1 those of calls and of operators are numbers of two kinds, so which
    operator launched a kernel follows from when and in which thread its call was made.
    """

    names: list[str]
    name: Integers
    code: Integers  # of CODES
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
        """Which events are of one of the kinds."""
        return np.isin(self.code, [CODES[kind] for kind in kinds])

    def named(self, *beginnings: str) -> Mask:
        """Which events have a name that begins so."""
        fits = np.array([name.startswith(beginnings) for name in self.names], dtype=bool)
        return fits[self.name] if len(self.names) else np.zeros(len(self), dtype=bool)

    def only(self, mask: Mask | Integers) -> Events:
        """Some of the events, by a mask or by their indices."""
        return replace(self, **{column: getattr(self, column)[mask] for column in COLUMNS})

    def moved(self, seconds: float) -> Events:
        """The same events, so much later."""
        return replace(self, began_s=self.began_s + seconds, ended_s=self.ended_s + seconds)

    @property
    def length_s(self) -> Floats:
        """How long each took."""
        return self.ended_s - self.began_s


class Columns:
    """Grows event by event, 64 bytes each. Doubles hold whole numbers up to 2^53, which all of these are below."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._values = array("d")

    def __len__(self) -> int:
        return len(self._values) // 8

    def add_row(self, row: dict[str, Any], kind: Kind, zero_us: float) -> None:
        """A row of the profiler's file, whose times are microseconds.

        KeyError, TypeError or ValueError where something is missing or no number; nothing is added then.
        """
        args = row.get("args") or {}
        if not isinstance(row["name"], str) or not isinstance(args, dict):
            raise TypeError("a name is text, and arguments have names")
        began_us = row["ts"] - zero_us
        if not (math.isfinite(began_us) and math.isfinite(row["dur"]) and row["dur"] >= 0):
            raise ValueError("a time is a number, and no length is below 0")
        thread = args.get("stream", row.get("tid"))
        values = (
            began_us * 1e-6,
            (began_us + row["dur"]) * 1e-6,
            self._names.setdefault(row["name"], len(self._names)),
            CODES[kind],
            thread if isinstance(thread, int) else hash(thread) % (1 << 31),
            args.get("device", 0),
            args.get("correlation", 0),
            args.get("bytes", UNKNOWN),
        )
        self._values.extend(array("d", values))

    def events(self, notes: tuple[str, ...] = ()) -> Events:
        """What was added."""
        began, ended, *whole = np.frombuffer(self._values).reshape(-1, 8).T if len(self) else np.zeros((8, 0))
        name, code, stream, device, correlation, size = (column.astype(np.int64) for column in whole)
        return Events(
            list(self._names), name, code, began.copy(), ended.copy(), stream, device, correlation, size, notes
        )
