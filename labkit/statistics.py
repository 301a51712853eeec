"""Intervals and dispersion, as "How a number is made" has them.

Throughputs and times are positive and their noise is multiplicative, so means and intervals are formed on logarithms
(the point is a geometric mean). Over passes the interval is Student's t: passes are fresh processes, so their values
are independent, which blocks within a pass are not (Georges et al., OOPSLA'07; Hoefler & Belli, SC'15, rules 5 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A point with its 95 % interval over `n` values; `low` and `high` are None where n < 2."""

    point: float
    low: float | None
    high: float | None
    n: int


def log_interval(values: Sequence[float]) -> Interval:
    """Geometric mean of positive `values` with Student's t interval on the logarithm.

    One value gives a point without an interval. Raises ValueError for no values or one that is not positive and finite.
    """
    return _exponential(linear_interval(np.log(_positive(values)).tolist()))


def ratio_interval(numerator: Mapping[Any, float], denominator: Mapping[Any, float]) -> Interval | None:
    """Interval of a ratio taken within each pass first: both arguments map a pass's number to its value.

    Passes that hold only one of the two are left out; None when no pass holds both. Raises ValueError
    as `log_interval` does.
    """
    shared = sorted(set(numerator) & set(denominator))
    if not shared:
        return None
    ratios = _positive([numerator[n] for n in shared]) / _positive([denominator[n] for n in shared])
    return log_interval(ratios.tolist())


def linear_interval(values: Sequence[float]) -> Interval:
    """Arithmetic mean with Student's t interval: for differences, and for shares that may be 0.

    Raises ValueError for no values or one that is not finite.
    """
    array = _finite(values)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, None, None, 1)
    half = t_quantile(CONFIDENCE, len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Interval(mean, mean - half, mean + half, len(array))


def share_interval(values: Sequence[float]) -> Interval:
    """Mean of shares between 0 and 1 with Student's t interval, cut off at 0 and 1, where no share can be.

    Raises ValueError for no values, or one that is no share.
    """
    found = linear_interval(values)
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"a share lies between 0 and 1, not {list(values)}")
    low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in (found.low, found.high))
    return Interval(found.point, low, high, found.n)


def difference_interval(minuend: Mapping[Any, float], subtrahend: Mapping[Any, float]) -> Interval | None:
    """Interval of a difference taken within each pass first, as `ratio_interval` does for ratios."""
    shared = sorted(set(minuend) & set(subtrahend))
    return linear_interval([minuend[n] - subtrahend[n] for n in shared]) if shared else None


def unpaired_difference(minuend: Sequence[float], subtrahend: Sequence[float]) -> Interval:
    """Interval of the difference of two means whose values share no passes (Welch 1947); n is the smaller count."""
    first, second = _finite(minuend), _finite(subtrahend)
    point, n = float(first.mean() - second.mean()), min(len(first), len(second))
    if n < 2:
        return Interval(point, None, None, n)
    parts = [float(one.var(ddof=1)) / len(one) for one in (first, second)]
    total = sum(parts)
    if total == 0:
        return Interval(point, point, point, n)
    degrees = total**2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (first, second), strict=True))
    half = t_quantile(CONFIDENCE, degrees) * math.sqrt(total)
    return Interval(point, point - half, point + half, n)


def unpaired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Interval of the ratio of two geometric means whose values share no passes: Welch's on the logarithms."""
    logs = (np.log(_positive(values)).tolist() for values in (numerator, denominator))
    return _exponential(unpaired_difference(*logs))


def _exponential(logs: Interval) -> Interval:
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Interval(math.exp(logs.point), low, high, logs.n)


def paired_share_difference(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Interval:
    """First share minus the second, of two answers to each of the same n questions, with its 95 % interval.

    Only questions answered differently say anything. Wald's interval with half an answer added to each of the four
    cells, which keeps its coverage when few differ: Agresti & Min (2005), Statistics in Medicine 24:729-740. Raises
    ValueError for none or unequally many answers.
    """
    n, _, only_first, only_second = _paired_counts(first, second)
    b, c, all_ = only_first + 0.5, only_second + 0.5, n + 2.0
    half = _Z * math.sqrt(b + c - (b - c) ** 2 / all_) / all_
    middle = (b - c) / all_
    return Interval((only_first - only_second) / n, middle - half, middle + half, n)


def paired_share_ratio(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Interval | None:
    """First share over the second of answers to the same n questions; None where one of them is 0.

    By the delta method on the logarithm, whose variance is (b + c) / ((a + b) (a + c)) with a answered rightly by both,
    b and c by one alone: Nam & Blackwelder (2002), Statistics in Medicine 21:689-699. Half an answer is added to each
    cell, as `paired_share_difference` does. Raises ValueError as it does.
    """
    n, both, only_first, only_second = _paired_counts(first, second)
    if both + only_first == 0 or both + only_second == 0:
        return None
    a, b, c = both + 0.5, only_first + 0.5, only_second + 0.5
    half = _Z * math.sqrt((b + c) / ((a + b) * (a + c)))
    middle = math.log((a + b) / (a + c))
    point = (both + only_first) / (both + only_second)
    return Interval(point, math.exp(middle - half), math.exp(middle + half), n)


_Z = 1.959963984540054  # the normal distribution's quantile of CONFIDENCE, two-sided


def _paired_counts(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """Questions; those answered rightly by both, by the first alone, by the second alone."""
    if len(first) != len(second) or not len(first):
        raise ValueError(f"paired answers are to the same questions: {len(first)} and {len(second)} were given")
    return len(first), int((first & second).sum()), int((first & ~second).sum()), int((~first & second).sum())


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=float)
    if not len(array) or not np.all(np.isfinite(array)):
        raise ValueError(f"an interval needs finite values, at least one, not {list(values)}")
    return array


def _positive(values: Sequence[float]) -> NDArray[np.float64]:
    """`values` as an array; ValueError for none, or for one that has no logarithm."""
    array = np.asarray(values, dtype=float)
    if not len(array):
        raise ValueError("an interval needs at least one value")
    if not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError(f"an interval on the logarithm needs positive finite values, not {list(values)}")
    return array


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    array = np.asarray(values, dtype=float)
    return float(array.std(ddof=1) / array.mean())


def t_quantile(confidence: float, degrees: float) -> float:
    """The two-sided quantile of Student's t distribution."""
    from scipy.special import stdtrit  # scipy.stats holds the same and takes a second to import

    return float(stdtrit(degrees, 0.5 + confidence / 2))
