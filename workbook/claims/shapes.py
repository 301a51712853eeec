"""The shapes of a test: each selects the trials to compare and yields their cases.

A trend is of a metric along a field: it rises, falls, stays constant, gains less with each step, or peaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

from workbook.claims.cases import (
    Weighed,
    bounds_of,
    compared_case,
    deciding_case,
    make_case,
    missing_case,
    ordered_families,
)
from workbook.claims.evidence import Side, families, level, pairs, ratio, samples
from workbook.claims.schema import Test
from workbook.claims.verdict import Bounds, Case, Verdict
from workbook.claims.words import (
    COMPARED,
    TIE,
    Kind,
    pair_name,
    shared_name,
    shown_effect,
    span,
    trial_name,
    value_words,
)
from workbook.registry import find_metric
from workbook.results.estimates import passes
from workbook.results.intervals import hosts_of, units_of
from workbook.statistics import Interval, linear_interval
from workbook.words import label as label_of
from workbook.words import listing, within_sentence

ALIKE = (1 / 1.1, 1.1)  # "alike", "constant"
MORE, LESS = Bounds(low=1.0, strict=True, tie=TIE), Bounds(high=1.0, strict=True, tie=TIE)


def _level(test: Test, chosen: list[Side]) -> Iterator[Case]:
    for side in chosen:
        yield make_case(test, trial_name(side, chosen), "level", level(side, test.metric), bounds_of(test), (side,))


def _compared(test: Test, chosen: list[Side]) -> Iterator[Case]:
    kind: Kind = "ratio" if test.shape == "ratio" else "difference"
    if test.metric_under:
        for side in chosen:
            above, below = (find_metric(name).label for name in (test.metric, test.metric_under))
            label = f"{trial_name(side, chosen)}: {above} {COMPARED[kind]} {within_sentence(below)}"
            yield compared_case(test, side, side, kind, label)
        return
    for family in families(chosen, test.over):
        for over, under in pairs(family, test.over, test.under):
            yield compared_case(test, over, under, kind, pair_name(over, under, chosen, list(test.over), kind))


def _trend(test: Test, chosen: list[Side]) -> Iterator[Case]:
    assert test.along is not None and test.trend is not None
    needed = 3 if test.trend in ("diminishing", "peaks") else 2
    for family in ordered_families(chosen, test.along):
        sides = [side for side in family if side.has(test.metric)]
        if len(family) < needed:
            continue
        shown = sides if len(sides) >= needed else family
        # The last side names the family: along `devices` the first may be one device, which has no scaling.
        label = f"{shared_name(family[-1], chosen, [test.along])}, {span(shown, test.along)}".removeprefix(", ")
        if len(sides) < needed:
            yield missing_case(test, label, "ratio", tuple(family))
        else:
            yield _without_some(TRENDS[test.trend](test, sides, label), test, [s for s in family if s not in sides])


def _without_some(case: Case, test: Test, absent: list[Side]) -> Case:
    """Return the case of a trend with the reason for each absent size."""
    if not absent:
        return case
    reasons = "; ".join(
        f"without {value_words(side, test.along or '')}: {missing_case(test, '', 'ratio', (side,)).reason}"
        for side in absent
    )
    return replace(case, reason=f"{case.reason}; {reasons}" if case.reason else reasons)


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
        if bounds.verdict(step) == "not replicated" and not bounds.shows_no_difference(step):
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
    sampled = [passes(rows, test.metric) for rows in samples(*((side, test.metric) for side in (*first, *second)))]
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
    return " over ".join(value_words(side, test.along or "", bare=True) for side in (upper, lower))


TRENDS: dict[str, Callable[[Test, list[Side], str], Case]] = {
    "rises": _monotone,
    "falls": _monotone,
    "constant": _constant,
    "diminishing": _diminishing,
    "peaks": _peaks,
}


def _order(test: Test, chosen: list[Side]) -> Iterator[Case]:
    assert test.along is not None
    along = test.along
    for family in families(chosen, [along]):
        in_order = [side for value in test.order for side in family if side.field(along) == value]
        for higher, lower in pairwise(in_order):
            label = pair_name(higher, lower, chosen, [along], "ratio")
            yield make_case(test, label, "ratio", ratio(higher, lower, test.metric), MORE, (higher, lower))


def _alike(test: Test, chosen: list[Side]) -> Iterator[Case]:
    """Yield a case per pair of values of `along`: its ratios for all values of `among` lie on the same side of 1."""
    assert test.along is not None and test.among is not None
    along, among = test.along, test.among
    for family in families(chosen, [along, among]):
        for first, second in combinations(sorted({str(side.field(along)) for side in family}), 2):
            couples = [
                (value, a, b)
                for value in sorted({str(side.field(among)) for side in family})
                if (a := _find(family, {along: first, among: value}))
                and (b := _find(family, {along: second, among: value}))
            ]
            if len(couples) < 2:
                continue
            label = _between(family, along, first, second)
            effects = {value: effect for value, a, b in couples if (effect := ratio(a, b, test.metric))}
            sides = tuple(side for _, a, b in couples for side in (a, b))
            if len(effects) < 2:
                yield missing_case(test, label, "ratio", sides)
            else:
                yield _alike_case(test, label, effects, sides)


def _between(family: list[Side], along: str, first: str, second: str) -> str:
    """Return the name of a pair: `batch 64: H100 SXM over H200 SXM`."""
    sides = [side for place in (first, second) if (side := _find(family, {along: place}))]
    shared = f"batch {family[0].trial.batch}: " if len({side.trial.batch for side in family}) == 1 else ""
    return shared + " over ".join(value_words(side, along) for side in sides)


def _alike_case(test: Test, label: str, effects: dict[str, Interval], sides: tuple[Side, ...]) -> Case:
    """Return the case of an order; differences of at most 5 % ("hardly") count as none, so they contradict no order."""
    largest = max(effects.values(), key=lambda effect: effect.point)
    shown = replace(largest, n=min(effect.n for effect in effects.values()))
    texts = "; ".join(
        f"{label_of('model', name)} {shown_effect(effect, test.metric, 'ratio')}" for name, effect in effects.items()
    )
    directions = {_direction(effect) for effect in effects.values()}
    verdict: Verdict = "replicated" if len(directions) == 1 and "open" not in directions else "inconclusive"
    if {"higher", "lower"} <= directions or _stand_apart(effects.values()):
        verdict = "not replicated"
    reason = "" if verdict != "inconclusive" else "for some there is no difference, or an interval straddles 1x"
    return Case(f"{label}: {texts}", verdict, test.metric, "ratio", sides, shown, None, reason)


def _stand_apart(effects: Collection[Interval]) -> bool:
    """Return whether some effects are equal, others are not, and their intervals do not overlap."""
    equal = [effect for effect in effects if _direction(effect) == "same"]
    others = [effect for effect in effects if _direction(effect) in ("higher", "lower")]
    return any(
        other.low > one.high or other.high < one.low  # type: ignore[operator]  # both have intervals
        for one in equal
        for other in others
    )


def _direction(effect: Interval) -> str:
    if effect.low is None or effect.high is None:
        return "open"
    if effect.low > 1 + TIE:
        return "higher"
    if effect.high < 1 / (1 + TIE):
        return "lower"
    return "same" if effect.low >= 1 / (1 + TIE) and effect.high <= 1 + TIE else "open"


def _differs(test: Test, chosen: list[Side]) -> Iterator[Case]:
    assert test.along is not None
    for group in families(chosen, [test.along, test.among]) if test.among else [chosen]:
        cases = []
        for family in ordered_families(group, test.along):
            if len(family) > 1:
                label = f"{shared_name(family[0], chosen, [test.along])}, {span(family, test.along)}".removeprefix(", ")
                cases.append(_labels_case(test, label, family))
        yield from [_best_of(cases)] if test.among and cases else cases


def _best_of(cases: list[Case]) -> Case:
    """Return the case that supports a claim of which one case is enough; else the one that comes closest to it."""
    order: tuple[Verdict, ...] = ("replicated", "inconclusive", "not replicated", "not testable here")
    best = min(cases, key=lambda case: order.index(case.verdict))
    labels = "; ".join(case.label for case in cases if case.verdict == best.verdict)
    return replace(best, label=labels, sides=tuple(side for case in cases for side in case.sides))


def _labels_case(test: Test, label: str, family: list[Side]) -> Case:
    """Return the case of a label. It has no interval: instead, all passes must agree on the label."""
    labels = [side.labels(test.metric) for side in family]
    case = Case(label, "inconclusive", test.metric, "level", tuple(family))
    if not all(labels):
        without = next(side for side, names in zip(family, labels, strict=True) if not names)
        return replace(case, verdict="not testable here", reason=without.failure() or without.why_no_label(test.metric))
    where: dict[str, list[str]] = {}  # label -> its values of the field, in order
    for side, names in zip(family, labels, strict=True):
        where.setdefault(listing(sorted(set(names))), []).append(value_words(side, test.along or "", bare=True))
    text = "; ".join(f"{listing(values)}: {names}" for names, values in where.items())
    passes = min(len(names) for names in labels)
    case = replace(case, label=f"{label} ({text})", passes=passes)
    if any(len(set(names)) > 1 for names in labels):
        return replace(case, reason="runs disagree")
    return replace(case, verdict="not replicated" if len(where) == 1 else "replicated")


SHAPES: dict[str, Callable[[Test, list[Side]], Iterator[Case]]] = {
    "level": _level,
    "ratio": _compared,
    "difference": _compared,
    "trend": _trend,
    "order": _order,
    "alike": _alike,
    "differs": _differs,
}


def _find(family: list[Side], wanted: dict[str, str]) -> Side | None:
    return next((s for s in family if all(str(s.field(name)) == value for name, value in wanted.items())), None)
