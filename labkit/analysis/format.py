"""Numbers for people: rounded only here, with their unit and their interval."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.registry import Metric, find_metric
from labkit.statistics import Interval

MISSING = "–"
LEAST_PERCENT = 0.001


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, thousands separated, no exponent from 0.001 to 10^15: 1234.5 -> '1,230'."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if not 1e-3 <= abs(rounded) < 1e15:
        return f"{value:.{digits - 1}e}"
    whole = len(str(int(abs(rounded)))) if abs(rounded) >= 1 else 0
    if abs(rounded) >= 1:
        return f"{rounded:,.{max(digits - whole, 0)}f}"
    return f"{rounded:.{digits}g}"


def least_to_most(told: Iterable[tuple[float, str]]) -> str:
    """The words of the least and of the largest of some values: `a to b`; of one alone its own, of none nothing."""
    known = sorted(told, key=lambda one: one[0])
    return " to ".join(dict.fromkeys([known[0][1], known[-1][1]])) if known else ""


def counted(mean: float | None) -> float | int | None:
    """A mean of counts for a table: a whole number where all were alike, which has no decimals then."""
    return int(mean) if mean is not None and mean.is_integer() else mean


def quantity(value: float | None, metric: str | Metric, digits: int = 3) -> str:
    """A stored SI value in the metric's printed unit."""
    about = find_metric(metric) if isinstance(metric, str) else metric
    if value is None:
        return MISSING
    return f"{number(value * about.scale, digits)} {about.unit}".strip()


def with_interval(interval: Interval | None, metric: str | Metric, digits: int = 4, *, unit: bool = True) -> str:
    """Point and 95 % interval: `1,234 images/s [1,200, 1,270]`; without one it says so.

    Without `unit`, for a column whose heading names it.
    """
    about = find_metric(metric) if isinstance(metric, str) else metric
    if interval is None:
        return MISSING
    point = quantity(interval.point, about, digits) if unit else number(interval.point * about.scale, digits)
    if interval.low is None or interval.high is None:
        return f"{point} (one pass, no interval)"
    return f"{point} [{number(interval.low * about.scale, digits)}, {number(interval.high * about.scale, digits)}]"


def percent(value: float | None, digits: int = 2) -> str:
    """A fraction as a percentage; one that is not 0 and less than a thousandth of a percent is told as such."""
    if value is not None and 0 < value * 100 < LEAST_PERCENT:
        return f"< {LEAST_PERCENT} %"
    return MISSING if value is None else f"{number(value * 100, digits)} %"


def listing(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"
