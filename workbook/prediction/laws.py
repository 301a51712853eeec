"""The two laws of a prediction, and their parameters.

Within a chip (the same compute capability and number of multiprocessors), each class of kernels scales by one peak:
convolutions and matrix products by FLOP/s in their precision, all others by bytes/s of memory. Kernels shorter than
`SHORTEST_S` on average take as long as before, because their launch decides.

Between chips, the time of a step follows `log t = w - a log FLOP/s - b log bytes/s`. The workload's own w comes from
the devices that have measured it, and the exponents a and b, which are not negative, from all others that were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

# Chosen in November 2026 among 0, 5 and 10 µs on the traces of one pair of devices, H100 and H200, after seeing them.
SHORTEST_S = 10e-6
COMPUTE = ("convolution", "matrix_product")
COVERED = 0.8  # of the cases that an interval should contain


class Rates(NamedTuple):
    """The nominal peaks of a device in one precision."""

    flop_per_s: float
    bytes_per_s: float


def within_chip(kernels: pd.DataFrame, source: Rates, target: Rates) -> float:
    """Return the seconds of a step's kernels on another device of the same chip.

    `kernels` has a row per class: `kernel_class`, `seconds` and `count` of a step on the source.

    >>> kernels = pd.DataFrame({"kernel_class": ["convolution", "element_wise"], "seconds": [2.0, 1.0], "count": 1})
    >>> within_chip(kernels, Rates(1.0, 1.0), Rates(1.0, 2.0))
    2.5
    """
    compute, memory = source.flop_per_s / target.flop_per_s, source.bytes_per_s / target.bytes_per_s
    ratio = np.where(kernels["kernel_class"].isin(COMPUTE), compute, memory)
    is_short = kernels["seconds"] < SHORTEST_S * kernels["count"]
    return float((kernels["seconds"] * np.where(is_short, 1.0, ratio)).sum())


def exponents(times: pd.DataFrame) -> tuple[float, float]:
    """Return a and b of the law between chips, from rows of workloads that several devices have measured.

    `times` has `table`, `workload`, `seconds`, `flop_per_s`, `bytes_per_s`. The mean over a workload's devices is
    taken off, so that its own w plays no part.
    """
    logs = np.log(times[["seconds", "flop_per_s", "bytes_per_s"]].astype(float))
    centred = logs - logs.groupby([times["table"], times["workload"]]).transform("mean")
    (compute, memory), _ = nnls(centred[["flop_per_s", "bytes_per_s"]].to_numpy(), -centred["seconds"].to_numpy())
    return float(compute), float(memory)


def work_of(times: pd.DataFrame, fitted: tuple[float, float]) -> pd.Series:
    """Return w of the law between chips in each row."""
    compute, memory = fitted
    logs = np.log(times[["seconds", "flop_per_s", "bytes_per_s"]].astype(float))
    return logs["seconds"] + compute * logs["flop_per_s"] + memory * logs["bytes_per_s"]


def between_chips(times: pd.DataFrame, target: Rates, fitted: tuple[float, float]) -> float:
    """Return the seconds of one workload on a target: the geometric mean over the devices that have measured it."""
    compute, memory = fitted
    work = work_of(times, fitted).mean()
    return math.exp(work - compute * math.log(target.flop_per_s) - memory * math.log(target.bytes_per_s))


def half_width(errors: Sequence[float], covered: float = COVERED) -> float:
    """Return the half width of a conformal interval in logarithms; infinite with too few errors to promise it.

    `errors` are logarithms of predicted over measured times of devices that were left out.

    >>> half_width([0.1, -0.2, 0.3, -0.05]), half_width([0.1])
    (0.3, inf)
    """
    ordered = sorted(map(abs, errors))
    place = math.ceil((len(ordered) + 1) * covered)
    return ordered[place - 1] if place <= len(ordered) else math.inf


def rates_of(peaks: Mapping[str, float], bytes_per_s: float | None, precision: str) -> Rates | None:
    """Return a device's rates in a precision; None if one of them is unknown. `default` computes mostly in TF32."""
    flop_per_s = peaks.get({"default": "tf32"}.get(precision, precision))
    return Rates(flop_per_s, bytes_per_s) if flop_per_s and bytes_per_s else None
