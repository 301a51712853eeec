"""How a metric runs along a field: rises, falls, stays, gains less and less, or peaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from labkit.analysis.cases import make_case, missing_case
from labkit.analysis.evidence import Side, level, ratio
from labkit.analysis.verdicts import Bounds, Case, Verdict
from labkit.analysis.words import shown_effect
from labkit.claims import Test
from labkit.statistics import Interval, linear_interval

STEP_BACK = 0.05  # "hardly": a trend may step back by so much between neighbours
ALIKE = (0.9, 1.1)  # "alike", "constant"


def _monotone(test: Test, family: list[Side], label: str) -> Case:
    """The last value over the first; a step in the other direction by more than 5 % contradicts."""
    rises = test.trend == "rises"
    bounds = Bounds(low=1.0) if rises else Bounds(high=1.0)
    case = make_case(test, label, "ratio", ratio(family[-1], family[0], test.metric), bounds, tuple(family))
    for before, after in pairwise(family):
        step = ratio(after, before, test.metric)
        if step is None or step.low is None or step.high is None:
            continue
        if (step.high < 1 - STEP_BACK) if rises else (step.low > 1 + STEP_BACK):
            said = f"between {before.field(test.along or '')} and {after.field(test.along or '')}"
            how = f"{'falls' if rises else 'rises'} {said}: {shown_effect(step, test.metric, 'ratio')}"
            return replace(case, verdict="not replicated", reason=f"it {how}")
    return case


def _constant(test: Test, family: list[Side], label: str) -> Case:
    """Every value within ±10 % of the first; the farthest is shown."""
    bounds = Bounds(*ALIKE)
    effects = [(side, effect) for side in family[1:] if (effect := ratio(side, family[0], test.metric))]
    if not effects:
        return missing_case(test, label, "ratio", tuple(family))
    farthest = max(effects, key=lambda pair: abs(pair[1].point - 1))
    case = make_case(test, label, "ratio", farthest[1], bounds, (family[0], farthest[0]))
    verdicts = {bounds.verdict(effect) for _, effect in effects}
    for verdict in ("not replicated", "inconclusive"):
        if verdict in verdicts and case.verdict == "replicated":
            return replace(case, verdict=verdict, reason="another value may lie outside")
    return case


def _diminishing(test: Test, family: list[Side], label: str) -> Case:
    """Each step adds less, a unit of the field, than the step before it; the largest ratio of two gains is shown."""
    assert test.along is not None
    values = [side.values(test.metric) for side in family]
    places = [float(side.field(test.along)) for side in family]
    shared = sorted(set.intersection(*(set(one) for one in values))) if all(values) else []
    effects = []
    for a, b, c in zip(range(len(family)), range(1, len(family)), range(2, len(family)), strict=False):
        gains = [
            (
                (values[b][n] - values[a][n]) / (places[b] - places[a]),
                (values[c][n] - values[b][n]) / (places[c] - places[b]),
            )
            for n in shared
        ]
        if not gains or min(first for first, _ in gains) <= 0:
            return Case(
                label, "inconclusive", test.metric, "ratio", tuple(family), reason="it does not rise in every pass"
            )
        effects.append(linear_interval([second / first for first, second in gains]))
    case = make_case(test, label, "ratio", max(effects, key=lambda one: one.point), Bounds(high=1.0), tuple(family))
    return case if case.verdict != "replicated" else _worst(case, [Bounds(high=1.0).verdict(e) for e in effects])


def _tapers(test: Test, family: list[Side], label: str) -> Case:
    """The last step's gain, a unit of the field, over the first step's."""
    assert test.along is not None
    values = [side.values(test.metric) for side in (*family[:2], *family[-2:])]
    places = [float(side.field(test.along)) for side in (*family[:2], *family[-2:])]
    shared = sorted(set.intersection(*(set(one) for one in values)))
    gains = [
        tuple((values[b][n] - values[a][n]) / (places[b] - places[a]) for a, b in ((0, 1), (2, 3))) for n in shared
    ]
    if not gains or min(first for first, _ in gains) <= 0:
        reason = "it does not rise at first in every pass"
        return Case(label, "inconclusive", test.metric, "ratio", tuple(family), reason=reason)
    effect = linear_interval([last / first for first, last in gains])
    return make_case(test, label, "ratio", effect, Bounds(high=1.0), tuple(family))


def _peaks(test: Test, family: list[Side], label: str) -> Case:
    """The highest value lies within the sweep and above both of its ends; its smaller lead is shown."""
    ends = (family[0], family[-1])
    inner = [side for side in family[1:-1] if level(side, test.metric)]
    if not inner:
        return missing_case(test, label, "ratio", tuple(family))
    top = max(inner, key=lambda side: (level(side, test.metric) or Interval(0, None, None, 0)).point)
    leads = [lead for end in ends if (lead := ratio(top, end, test.metric))]
    if len(leads) < 2:
        return missing_case(test, label, "ratio", tuple(family))
    case = make_case(test, label, "ratio", min(leads, key=lambda one: one.point), Bounds(low=1.0), (top, *ends))
    return _worst(case, [Bounds(low=1.0).verdict(lead) for lead in leads])


def _worst(case: Case, verdicts: list[Verdict]) -> Case:
    for verdict in ("not replicated", "inconclusive"):
        if verdict in verdicts and case.verdict == "replicated":
            return replace(case, verdict=verdict, reason="another step is open" if verdict == "inconclusive" else "")
    return case


TRENDS: dict[str, Callable[[Test, list[Side], str], Case]] = {
    "rises": _monotone,
    "falls": _monotone,
    "constant": _constant,
    "diminishing": _diminishing,
    "tapers": _tapers,
    "peaks": _peaks,
}
