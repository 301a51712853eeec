"""Trends of a metric along a field: it rises, falls, stays constant, gains less with each step, or peaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise

from workbook.claims.cases import Weighed, deciding_case, make_case, missing_case
from workbook.claims.evidence import Side, level, ratio, samples
from workbook.claims.schema import Test
from workbook.claims.verdict import Bounds, Case
from workbook.claims.words import TIE, shown_effect, value_words
from workbook.results.intervals import hosts_of, units_of
from workbook.statistics import Interval, linear_interval

ALIKE = (1 / 1.1, 1.1)  # "alike", "constant"
MORE, LESS = Bounds(low=1.0, strict=True, tie=TIE), Bounds(high=1.0, strict=True, tie=TIE)


def _monotone(test: Test, family: list[Side], label: str) -> Case:
    """Return the case of the last value over the first; a step back of more than a tie contradicts the trend."""
    rises = test.trend == "rises"
    bounds = MORE if rises else LESS
    label = f"{label}: {_over(family[-1], family[0], test)}"
    case = make_case(test, label, "ratio", ratio(family[-1], family[0], test.metric), bounds, tuple(family))
    for before, after in pairwise(family):
        step = ratio(after, before, test.metric)
        if step is None or step.low is None or step.high is None:
            continue
        if bounds.verdict(step) == "not replicated":
            step_name = f"between {before.field(test.along or '')} and {after.field(test.along or '')}"
            how = f"{'falls' if rises else 'rises'} {step_name}: {shown_effect(step, test.metric, 'ratio')}"
            chance = min(1.0, (len(family) - 1) * bounds.chance_against(step))  # each step could have been the one
            return replace(case, verdict="not replicated", reason=f"it {how}", corrected_chance=chance)
    return case


def _constant(test: Test, family: list[Side], label: str) -> Case:
    """Return the case that any two values are within ±10 % of each other."""
    bounds = Bounds(*ALIKE)
    effects = [
        Weighed(effect, bounds, _over(second, first, test))
        for first, second in combinations(family, 2)
        if (effect := ratio(second, first, test.metric))
    ]
    if not effects:
        return missing_case(test, label, "ratio", tuple(family))
    effects.sort(key=lambda weighed: -abs(math.log(weighed.effect.point)))  # show the farthest that decides
    return deciding_case(test, label, effects, tuple(family))


def _diminishing(test: Test, family: list[Side], label: str) -> Case:
    """Return the case that each step adds less per unit of the field than the step before."""
    steps = list(pairwise(family))
    effects = [Weighed(effect, LESS) for pair in pairwise(steps) if (effect := _gain_ratio(test, *pair))]
    if len(effects) < len(steps) - 1:
        reason = "it does not rise in every run"
        return Case(label, "inconclusive", test.metric, "ratio", tuple(family), reason=reason)
    effects.sort(key=lambda weighed: -weighed.effect.point)
    return deciding_case(test, label, effects, tuple(family))


def _gain_ratio(test: Test, first: tuple[Side, Side], second: tuple[Side, Side]) -> Interval | None:
    """Return the second step's gain per unit over the first's; None if the first step gains nothing in a pass."""
    along = test.along or ""
    sampled = samples([(side, test.metric) for side in (*first, *second)])
    values = [units_of(of_side) for of_side in sampled]
    places = [float(side.field(along)) for side in (*first, *second)]
    shared = sorted(set.intersection(*map(set, values)))
    ratios = []
    for unit in shared:
        gains = [(values[b][unit] - values[a][unit]) / (places[b] - places[a]) for a, b in ((0, 1), (2, 3))]
        if gains[0] <= 0:
            return None
        ratios.append(gains[1] / gains[0])
    return replace(linear_interval(ratios), hosts=len(hosts_of(sampled[0]))) if ratios else None


def _peaks(test: Test, family: list[Side], label: str) -> Case:
    """Return the case that the highest value lies inside the sweep and above both of its ends."""
    ends = (family[0], family[-1])
    inner = [(value.point, place) for place, side in enumerate(family[1:-1]) if (value := level(side, test.metric))]
    if not inner:
        return missing_case(test, label, "ratio", tuple(family))
    top = family[1 + max(inner)[1]]
    effects = [Weighed(lead, MORE, _over(top, end, test)) for end in ends if (lead := ratio(top, end, test.metric))]
    if len(effects) < len(ends):
        return missing_case(test, label, "ratio", (top, *ends))
    effects.sort(key=lambda weighed: weighed.effect.point)
    return deciding_case(test, label, effects, (top, *ends))


def _over(upper: Side, lower: Side, test: Test) -> str:
    """Return the two values of a trend that an effect compares: `32 over 64`."""
    values = (value_words(side, test.along or "", bare=True) for side in (upper, lower))
    return " over ".join(values)


TRENDS: dict[str, Callable[[Test, list[Side], str], Case]] = {
    "rises": _monotone,
    "falls": _monotone,
    "constant": _constant,
    "diminishing": _diminishing,
    "peaks": _peaks,
}
