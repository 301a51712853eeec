"""Intervals of a metric, a ratio or a difference from values by host and pass.

With at least `HOSTS` equal hosts the interval is over hosts: each host counts with the mean over its passes, and
Student's t over hosts gives the ends. Passes of one host share its processor and its neighbours, so their spread says
nothing about other hosts. With fewer hosts the interval is over the passes of one host, and holds for that host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbook.registry import METRICS
from workbook.statistics import (
    Interval,
    difference_interval,
    linear_interval,
    log_interval,
    ratio_interval,
    share_interval,
    unpaired_difference,
    unpaired_ratio,
)

HOSTS = 3  # the fewest equal hosts for an interval over hosts
PAIRS = 3  # the fewest passes of one process for an interval over them alone
Passes = Mapping[tuple[str, int], float]  # (host, pass number) -> value
Mean = Callable[[list[float]], Interval]
Comparison = Callable[..., Interval | None]


def hosts_of(values: Passes) -> set[str]:
    """Return the hosts that have a value."""
    return {host for host, _ in values}


def numbers_of(found: Interval | None) -> tuple[float, float, float]:
    """Return the point and the ends of an interval for a row of a table; NaN for what is missing."""
    if found is None:
        return math.nan, math.nan, math.nan
    low, high = (math.nan if end is None else end for end in (found.low, found.high))
    return found.point, low, high


def interval_of(values: Iterable[float], metric: str) -> Interval | None:
    """Return the interval of a metric over values that are independent, such as one host's; None without a value."""
    numbers = list(values)
    return _form(numbers, metric)(numbers) if numbers else None


def level_of(values: Passes, metric: str) -> Interval | None:
    """Return the interval of a metric, over hosts with at least `HOSTS` of them; None without a value."""
    if len(hosts_of(values)) < HOSTS:
        return interval_of(values.values(), metric)
    form = _form(list(values.values()), metric)
    means = _means(values, form)
    return replace(form(list(means.values())), n=len(values), hosts=len(means))


def ratio_of(above: Passes, below: Passes, *, paired: bool) -> Interval | None:
    """Return a ratio: of the hosts' geometric means on the same `HOSTS` or more hosts, else as `ratio_of_passes`."""
    if not above or not below or min(*above.values(), *below.values()) <= 0:
        return None
    return _compared(above, below, paired, log_interval, ratio_of_passes)


def difference_of(above: Passes, below: Passes, *, paired: bool) -> Interval | None:
    """Return a difference: of the hosts' means on the same `HOSTS` or more hosts, else as `difference_of_passes`."""
    return _compared(above, below, paired, linear_interval, difference_of_passes) if above and below else None


def ratio_of_passes(above: Mapping[Any, float], below: Mapping[Any, float], *, paired: bool) -> Interval | None:
    """Return the ratio of two configurations from their values by pass; None without values, or if one is 0 or less."""
    if not above or not below or min(*above.values(), *below.values()) <= 0:
        return None
    return ratio_interval(above, below) if paired else unpaired_ratio(list(above.values()), list(below.values()))


def difference_of_passes(above: Mapping[Any, float], below: Mapping[Any, float], *, paired: bool) -> Interval | None:
    """Return the difference of two configurations from their values by pass; None if a side is empty."""
    if not above or not below:
        return None
    first, second = list(above.values()), list(below.values())
    return difference_interval(above, below) if paired else unpaired_difference(first, second)


def are_planned_alike(above: Passes, below: Passes, planned: tuple[float, float]) -> bool:
    """Return whether neither side has a pass that was never planned for the other; `planned` are passes per side.

    Trials that the host delays have more passes than captured ones. Pairing them would drop half of the noisier side's
    passes. That widens its interval by more than pairing gains, because captured steps hardly vary between passes. The
    plan decides and not the values, so a missing pass of either side still leaves the other passes paired.
    """
    first, second = ({number for _, number in side} for side in (above, below))
    return max(first - second, default=0) <= planned[1] and max(second - first, default=0) <= planned[0]


def units_of(values: Passes) -> dict[Any, float]:
    """Return the independent values: host -> mean with at least `HOSTS` hosts, else pass number -> value."""
    if len(hosts_of(values)) < HOSTS:
        return {number: value for (_, number), value in values.items()}
    return dict(_means(values, linear_interval))


def in_one_process(sides: Sequence[Passes], processes: Sequence[Mapping[tuple[str, int], str]]) -> list[Passes]:
    """Return the values of two configurations in the passes in which both ran in one process: `processes`, by pass.

    A pass that was interrupted goes on in another process. If fewer than `PAIRS` passes are left, return all common
    passes, because Student's t of two pairs is 12.7.
    """
    above, below = processes
    common = set.intersection(*map(set, sides))
    shared = {number for number in common if above[number] == below[number]}
    used = shared if len(shared) >= PAIRS else common
    return [{key: value for key, value in side.items() if key in used} for side in sides]


def _compared(above: Passes, below: Passes, paired: bool, mean: Mean, comparison: Comparison) -> Interval | None:
    sides, shared = (above, below), hosts_of(above) & hosts_of(below)
    if len(shared) >= HOSTS:
        of_both = [{key: value for key, value in side.items() if key[0] in shared} for side in sides]
        found = comparison(*(_means(side, mean) for side in of_both), paired=True)
        return found and replace(found, n=min(map(len, of_both)), hosts=len(shared))
    fewest = min(len(hosts_of(side)) for side in sides)
    means = [_means(side, mean) if len(hosts_of(side)) >= HOSTS else side for side in sides]
    found = comparison(*means, paired=paired)
    if found is None or fewest < HOSTS:
        return found
    return replace(found, n=min(map(len, sides)), hosts=fewest)


def _means(values: Passes, mean: Mean) -> dict[str, float]:
    by_host: dict[str, list[float]] = {}
    for (host, _), value in values.items():
        by_host.setdefault(host, []).append(value)
    return {host: mean(of_host).point for host, of_host in by_host.items()}


def _form(numbers: list[float], metric: str) -> Mean:
    """Return the mean with its interval that suits a metric: of shares, on logarithms, or arithmetic."""
    about = METRICS.get(metric)
    if about is not None and about.share and min(numbers) >= 0 and max(numbers) <= 1:
        return share_interval
    return log_interval if min(numbers) > 0 else linear_interval
