"""Intervals and dispersion of measurements.

Throughputs and times are positive and their noise is multiplicative, so means and intervals are formed on logarithms
(the point is a geometric mean). Over runs the interval is Student's t. A run is a fresh process, so values of runs are
independent, while blocks within a run are not (Georges et al., OOPSLA'07; Hoefler & Belli, SC'15, rules 5 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.statistics import t_quantile

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A point with its 95 % interval over `n` values. `low` and `high` are None if n < 2.

    With several `hosts` the interval is over their means, and `n` counts the values behind these.

    `half` is half the interval's width where it is symmetric: on the logarithm if `is_log`. `degrees` are those of
    Student's t; infinite for the normal distribution.
    """

    point: float
    low: float | None
    high: float | None
    n: int
    half: float | None = field(default=None, compare=False, repr=False)
    degrees: float = field(default=math.inf, compare=False, repr=False)
    is_log: bool = field(default=False, compare=False, repr=False)
    hosts: int = field(default=1, compare=False, repr=False)

    def chance_beyond(self, bound: float) -> float:
        """Return the one-sided p value: how often chance takes the effect so far past `bound` if its truth is there.

        It is 1 without an interval.
        """
        from scipy.special import stdtr

        if self.half is None or (self.is_log and bound <= 0):
            return 1.0
        form: Callable[[float], float] = math.log if self.is_log else float
        center = form(self.point)
        if self.low is not None and self.high is not None and (self.low > 0 or not self.is_log):
            low, high = form(self.low), form(self.high)
            if math.isclose(high - low, 2 * self.half, rel_tol=1e-6):  # a share's interval may be cut at 0 or 1
                center = (low + high) / 2  # of paired shares it is not the point
        distance = abs(center - form(bound))
        if not self.half:
            return 0.0 if distance else 1.0
        return float(stdtr(self.degrees, -distance * t_quantile(CONFIDENCE, self.degrees) / self.half))


def log_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive `values` with Student's t interval on the logarithm.

    One value gives a point without an interval. Raise ValueError for no values, or a value not positive and finite.
    """
    return _exponential(linear_interval(np.log(_positive(values)).tolist()))


def ratio_interval(numerator: Mapping[Any, float], denominator: Mapping[Any, float]) -> Interval | None:
    """Return the interval of a ratio taken within each run: both arguments map a run's number to its value.

    Runs in only one argument are left out. Return None if no run is in both. Raise ValueError as `log_interval`.
    """
    shared = sorted(set(numerator) & set(denominator))
    if not shared:
        return None
    ratios = _positive([numerator[n] for n in shared]) / _positive([denominator[n] for n in shared])
    return log_interval(ratios.tolist())


def linear_interval(values: Sequence[float]) -> Interval:
    """Return the arithmetic mean with Student's t interval: for differences, and for shares that may be 0.

    Raise ValueError for no values, or a value that is not finite.
    """
    array = _finite(values)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, None, None, 1)
    degrees = len(array) - 1
    half = t_quantile(CONFIDENCE, degrees) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Interval(mean, mean - half, mean + half, len(array), half, degrees)


def share_interval(values: Sequence[float]) -> Interval:
    """Return the mean of shares between 0 and 1 with Student's t interval, cut off at 0 and 1.

    Raise ValueError for no values, or a value outside 0 to 1.
    """
    linear = linear_interval(values)
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"a share lies between 0 and 1, not {list(values)}")
    low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in (linear.low, linear.high))
    return replace(linear, low=low, high=high)


def difference_interval(minuend: Mapping[Any, float], subtrahend: Mapping[Any, float]) -> Interval | None:
    """Return the interval of a difference taken within each run; None if no run is in both arguments."""
    shared = sorted(set(minuend) & set(subtrahend))
    return linear_interval([minuend[n] - subtrahend[n] for n in shared]) if shared else None


def unpaired_difference(minuend: Sequence[float], subtrahend: Sequence[float]) -> Interval:
    """Return the interval of the difference of two means over different runs (Welch 1947); n is the smaller count."""
    first, second = _finite(minuend), _finite(subtrahend)
    point, n = float(first.mean() - second.mean()), min(len(first), len(second))
    if n < 2:
        return Interval(point, None, None, n)
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in (first, second)]
    total = sum(parts)
    if total == 0:
        return Interval(point, point, point, n, 0.0)
    degrees = total**2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (first, second), strict=True))
    half = t_quantile(CONFIDENCE, degrees) * math.sqrt(total)
    return Interval(point, point - half, point + half, n, half, degrees)


def unpaired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Return the interval of the ratio of two geometric means over different runs: Welch's on the logarithms."""
    logs = (np.log(_positive(values)).tolist() for values in (numerator, denominator))
    return _exponential(unpaired_difference(*logs))


def _exponential(logs: Interval) -> Interval:
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Interval(math.exp(logs.point), low, high, logs.n, logs.half, logs.degrees, is_log=True)


def paired_share_difference(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Interval:
    """Return the first share of right answers minus the second, to the same n questions, with its 95 % interval.

    Only questions answered differently carry information. The interval is Wald's with half an answer added to each of
    the four cells, which keeps its coverage if few answers differ: Agresti & Min (2005), Statistics in Medicine
    24:729-740. Raise ValueError for no answers or different numbers of answers.
    """
    n, _, only_first, only_second = _paired_counts(first, second)
    b, c, all_ = only_first + 0.5, only_second + 0.5, n + 2.0
    half = _Z * math.sqrt(b + c - (b - c) ** 2 / all_) / all_
    middle = (b - c) / all_
    return Interval((only_first - only_second) / n, middle - half, middle + half, n, half)


def paired_share_ratio(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Interval | None:
    """Return the first share of right answers over the second, to the same n questions; None if a share is 0.

    The interval uses the delta method on the logarithm: the variance is (b + c) / ((a + b) (a + c)), with `a` right
    answers by both, and `b` and `c` by the first or the second alone: Nam & Blackwelder (2002), Statistics in Medicine
    21:689-699. Half an answer is added to each cell. Raise ValueError as `paired_share_difference` does.
    """
    n, both, only_first, only_second = _paired_counts(first, second)
    if both + only_first == 0 or both + only_second == 0:
        return None
    a, b, c = both + 0.5, only_first + 0.5, only_second + 0.5
    half = _Z * math.sqrt((b + c) / ((a + b) * (a + c)))
    middle = math.log((a + b) / (a + c))
    point = (both + only_first) / (both + only_second)
    return Interval(point, math.exp(middle - half), math.exp(middle + half), n, half, is_log=True)


_Z = 1.959963984540054  # the normal distribution's quantile of CONFIDENCE, two-sided


def _paired_counts(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Return the numbers of questions, and of those answered rightly by both, the first alone, the second alone."""
    if len(first) != len(second) or not len(first):
        raise ValueError(f"paired answers need the same questions, at least one: {len(first)} and {len(second)} given")
    return len(first), int((first & second).sum()), int((first & ~second).sum()), int((~first & second).sum())


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=float)
    if not len(array) or not np.all(np.isfinite(array)):
        raise ValueError(f"an interval needs finite values, at least one, not {list(values)}")
    return array


def _positive(values: Sequence[float]) -> NDArray[np.float64]:
    """Return `values` as an array. Raise ValueError for no values, or a value without a finite logarithm."""
    array = np.asarray(values, dtype=float)
    if not len(array) or not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError(f"an interval on the logarithm needs positive finite values, at least one, not {list(values)}")
    return array
