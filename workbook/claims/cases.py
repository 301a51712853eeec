"""Cases: the effect of one or two trials, compared with a test's bound and with the published magnitude."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from workbook.claims import effects
from workbook.claims.evidence import Side, compare, families, level
from workbook.claims.schema import Test
from workbook.claims.verdict import DECIDING, Bounds, Case, Verdict
from workbook.claims.words import MARGIN, TIE, Kind, device_titles, shown_value
from workbook.registry import find_metric
from workbook.statistics import Interval
from workbook.words import MISSING, listing, quantity, within_sentence

NO_INTERVAL, STRADDLES = "one run has no interval", "the interval straddles the bound"
NO_DIFFERENCE = f"the whole interval lies within {MARGIN} of equal: no difference"
TIED = f"the interval comes within {MARGIN} of the bound, a tie"


def compared_case(test: Test, over: Side, under: Side, kind: Kind, label: str) -> Case:
    """Return the case of two trials, or of two metrics of one trial."""
    sides = (over,) if over is under else (over, under)
    if effects.is_by_image(over, under, test.metric):
        by_image = effects.compare_images(over, under, test.metric, kind)
        if by_image.effect is None:
            return Case(label, "not testable here", test.metric, kind, sides, reason=by_image.reason)
        case = make_case(test, label, kind, by_image.effect, bounds_of(test), sides)
        return replace(case, reason="; ".join(text for text in (case.reason, by_image.note) if text))
    if kind == "ratio" and test.metric == effects.EPOCHS and any(map(effects.short, sides)):
        case = make_case(test, label, kind, effects.least_ratio(over, under), bounds_of(test), sides)
        return _one_sided(case, over, under)
    effect = compare(kind, over, under, test.metric, test.metric_under)
    return make_case(test, label, kind, effect, bounds_of(test), sides)


def _one_sided(case: Case, over: Side, under: Side) -> Case:
    """Return the case of a `least_ratio`; its verdict stands only if more epochs could not change it."""
    if case.effect is None or case.bounds is None:
        return case
    late, early = effects.short(over), effects.short(under)
    shortfall = [
        f"{count} of {len(effects.finished(side))} runs did not reach {side.trial.target_top1:.0%} in "
        f"{side.trial.epochs} epochs and count as {side.trial.epochs}, a lower bound"
        for side, count in ((over, late), (under, early))
        if count
    ]
    stands = bool(late) != bool(early) and case.bounds.verdict_stands(case.effect, up=bool(late))
    verdict = case.verdict if stands else "inconclusive"
    reason = "; ".join(filter(None, [case.reason, *shortfall]))
    return replace(case, verdict=verdict, reason=reason, is_least=bool(late and not early))


def bounds_of(test: Test) -> Bounds | None:
    """Return the bound of a test's direction; None for a test that has only a published magnitude."""
    if test.outside:
        return Bounds(*test.outside, outside=True)
    # "More" is not "the same": a bound at equality (a ratio of 1, a difference of 0) is strict.
    about_one = 1.0 if test.shape == "level" and find_metric(test.metric).unit == "x" else None
    equality = {"ratio": 1.0, "difference": 0.0}.get(test.shape, about_one)
    ends = test.between or (test.at_least, test.at_most)
    if ends == (None, None):
        return None
    strict = equality is not None and equality in ends
    return Bounds(*ends, strict=strict, tie=TIE if strict and equality else 0.0)


def make_case(
    test: Test, label: str, kind: Kind, effect: Interval | None, bounds: Bounds | None, sides: tuple[Side, ...]
) -> Case:
    """Return a case with its verdict: from `bounds`, and on the paper's hardware also from the published magnitudes."""
    if effect is None:
        return missing_case(test, label, kind, sides)
    applying = [
        published
        for published in test.published
        if any(all(side.field(name) == value for name, value in published.select.items()) for side in sides)
    ]
    printed = []
    for published in applying:
        values = " to ".join(shown_value(end, test.metric, kind) for end in published.ends)
        printed.append(f"{values} on {device_titles(published.hardware)}")
    own = [published for published in applying if _hardware(sides) & set(published.hardware)]
    about = [Bounds(*published.bounds(of_ratio=kind == "ratio")) for published in own]
    case = Case(label, "inconclusive", test.metric, kind, sides, effect, bounds or (about[0] if about else None))
    case = replace(case, published="; ".join(printed), beside=_beside(test, sides))
    if not bounds and not about:
        return replace(case, verdict="not testable here", reason=_whose_magnitude(test, sides))
    verdict = worst([bound.verdict(effect) for bound in (bounds, *about) if bound])
    by_direction = bounds.verdict(effect) if bounds else "replicated"
    if verdict == "inconclusive":
        reason = _why_open(effect, bounds)
        return replace(case, reason=reason if by_direction == verdict else f"{reason} of what was published")
    not_about = verdict == "not replicated" and by_direction != verdict
    if not_about:
        chance = min(1.0, len(about) * min(bound.chance_against(effect) for bound in about))
        return replace(case, verdict=verdict, reason="it is not about the published value", corrected_chance=chance)
    no_difference = bounds is not None and bounds.shows_no_difference(effect)
    return replace(case, verdict=verdict, reason=NO_DIFFERENCE if no_difference else "")


def _why_open(effect: Interval, bounds: Bounds | None) -> str:
    """Return why the interval of an effect decides nothing."""
    if effect.low is None or effect.high is None:
        return NO_INTERVAL
    ends = [end for end in (bounds.low, bounds.high) if end is not None] if bounds and bounds.tie else []
    return STRADDLES if not ends or any(effect.low <= end <= effect.high for end in ends) else TIED


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the first verdict present, in the order of DECIDING; else "not testable here"."""
    return next((verdict for verdict in DECIDING if verdict in verdicts), "not testable here")


class Weighed(NamedTuple):
    """One of several effects that decide a case together: its interval, its bounds, and the values it compares."""

    effect: Interval
    bounds: Bounds
    of: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of this effect alone."""
        return self.bounds.verdict(self.effect)


def deciding_case(test: Test, label: str, effects: list[Weighed], sides: tuple[Side, ...]) -> Case:
    """Return the case of several effects that must all lie in their bounds; it shows the first effect that decides."""
    verdict = worst([weighed.verdict for weighed in effects])
    effect, bounds, of = next(weighed for weighed in effects if weighed.verdict == verdict)
    effect = replace(effect, n=min(weighed.effect.n for weighed in effects))
    label = f"{label}: {of}" if of else label
    reason = _why_open(effect, bounds) if verdict == "inconclusive" else ""
    case = Case(label, verdict, test.metric, "ratio", sides, effect, bounds, reason=reason, beside=_beside(test, sides))
    if verdict != "not replicated":
        return case
    clearest = min(weighed.bounds.chance_against(weighed.effect) for weighed in effects)
    return replace(case, corrected_chance=min(1.0, len(effects) * clearest))


def missing_case(test: Test, label: str, kind: Kind, sides: tuple[Side, ...]) -> Case:
    """Return a case without an effect, with the reason: a failure is a row too."""
    failed = [reason for side in sides if (reason := side.failure())]
    if failed:
        reason = failed[0]
    else:
        metric = test.metric_under if test.metric_under and all(s.has(test.metric) for s in sides) else test.metric
        without = next((side for side in sides if not side.has(metric)), None)
        reason = (
            f"{within_sentence(find_metric(metric).label)}: {without.why_missing(metric)}"
            if without
            else _no_effect(test, kind, sides)
        )
    return Case(label, "not testable here", test.metric, kind, sides, reason=reason)


def _no_effect(test: Test, kind: Kind, sides: tuple[Side, ...]) -> str:
    """Return why there is no effect although every side has values."""
    protocols = sorted(set.union(*(side.protocols for side in sides)))
    if len(protocols) > 1:
        return f"protocols {listing(protocols)} made them in different ways, so they are not compared"
    names = list({test.metric, test.metric_under or test.metric})
    if kind == "ratio" and any((side.rows[names] <= 0).any(axis=None) for side in sides):
        return "a value of 0 or less has no ratio"
    return "the configurations share no run"


def _hardware(sides: tuple[Side, ...]) -> set[str]:
    return {side.results.profile.name for side in sides}


def _whose_magnitude(test: Test, sides: tuple[Side, ...]) -> str:
    """Return why a published magnitude decides nothing here: it is of other hardware or of other configurations."""
    where = sorted({name for published in test.published for name in published.hardware})
    if not _hardware(sides) & set(where):
        return f"published for {device_titles(where)}, and judged on that hardware only"
    of = "; ".join(", ".join(f"{name} {value}" for name, value in one.select.items()) for one in test.published)
    return f"the published value is of other configurations ({of})"


def _beside(test: Test, sides: tuple[Side, ...]) -> tuple[tuple[str, str], ...]:
    """Return (label, value) of each metric in `beside`, for the first trial; of a trend, for the trials at its ends."""
    ends = sides[:1]
    if test.shape == "trend" and test.along:
        along = test.along
        ordered = sorted(sides, key=lambda side: _sortable(side.field(along)))
        ends = (ordered[0], ordered[-1])
    texts = []
    for name in test.beside:
        intervals = [level(side, name) for side in ends]
        if any(intervals):
            shown = dict.fromkeys(quantity(interval.point, name) if interval else MISSING for interval in intervals)
            texts.append((find_metric(name).label, " to ".join(shown)))
    return tuple(texts)


def ordered_families(chosen: list[Side], along: str) -> list[list[Side]]:
    """Return families along a field, in ascending order and with one side per value of the field.

    Of several sides with one value (two devices of a generation) the last stays. Sides without a value are left out.
    """
    unordered = families([side for side in chosen if side.field(along) is not None], [along])
    once = [list({side.field(along): side for side in family}.values()) for family in unordered]
    return [sorted(family, key=lambda side: _sortable(side.field(along))) for family in once]


def _sortable(value: object) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))
