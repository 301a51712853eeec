"""Making a case: the effect of one or two trials, held against a test's bound and what was published."""

from __future__ import annotations

from dataclasses import replace

from labkit.analysis.evidence import Side, difference, families, level, ratio
from labkit.analysis.format import listing, quantity
from labkit.analysis.observations import why_not
from labkit.analysis.verdicts import Bounds, Case
from labkit.analysis.words import Kind, metric_name, shown_value
from labkit.claims import Published, Test
from labkit.statistics import Interval

NO_INTERVAL = "one pass has no interval"


def compare(test: Test, over: Side, under: Side, kind: Kind, label: str) -> Case:
    """The case of two trials, or of two metrics of one."""
    form = ratio if kind == "ratio" else difference
    sides = (over,) if over is under else (over, under)
    return make_case(test, label, kind, form(over, under, test.metric, test.metric_under), bounds_of(test), sides)


def bounds_of(test: Test) -> Bounds | None:
    """The bound of a test's direction; None where only a magnitude was published."""
    if test.outside:
        return Bounds(*test.outside, outside=True)
    if test.between:
        return Bounds(*test.between)
    return None if test.at_least is test.at_most is None else Bounds(test.at_least, test.at_most)


def make_case(
    test: Test, label: str, kind: Kind, effect: Interval | None, bounds: Bounds | None, sides: tuple[Side, ...]
) -> Case:
    """A case with its verdict: by the direction's bounds anywhere, by the magnitude on the paper's hardware too."""
    if effect is None:
        return missing_case(test, label, kind, sides)
    applying = [one for one in test.published if _is_of(one, sides)]
    said = "; ".join(_magnitude(one, test.metric, kind) for one in applying)
    here = {side.results.profile.name for side in sides}
    own = [Bounds(*one.bounds(of_ratio=kind == "ratio")) for one in applying if here & set(one.hardware)]
    verdicts = [one.verdict(effect) for one in (bounds, *own) if one]
    shown = bounds or (own[0] if own else None)
    common = Case(
        label, "inconclusive", test.metric, kind, sides, effect, shown, published=said, beside=_beside(test, sides)
    )
    if not verdicts:
        where = listing(sorted({name for one in test.published for name in one.hardware}))
        return replace(common, verdict="not testable here", reason=f"a magnitude of {where}; here it stands beside")
    verdict = next((one for one in ("not replicated", "inconclusive") if one in verdicts), "replicated")
    if verdict != "inconclusive":
        return replace(common, verdict=verdict)  # type: ignore[arg-type]
    return replace(common, reason=NO_INTERVAL if effect.low is None else "the interval straddles the bound")


def missing_case(test: Test, label: str, kind: Kind, sides: tuple[Side, ...]) -> Case:
    """A case without an effect, and why: a failure is a row."""
    failed = [reason for side in sides if (reason := side.failure())]
    if failed:
        reason = failed[0]
    else:
        without = [side for side in sides if not side.values(test.metric)]
        reason = (
            f"{metric_name(test.metric).lower()}: {why_not(without[0].results, test.metric)}"
            if without
            else "a value of 0 has no ratio, or the trials share no pass"
        )
    return Case(label, "not testable here", test.metric, kind, sides, reason=reason)


def _is_of(published: Published, sides: tuple[Side, ...]) -> bool:
    return any(all(side.field(name) == value for name, value in published.select.items()) for side in sides)


def _magnitude(published: Published, metric: str, kind: Kind) -> str:
    ends = published.value if isinstance(published.value, tuple) else (published.value,)
    return f"{' to '.join(shown_value(end, metric, kind) for end in ends)} on {listing(published.hardware)}"


def _beside(test: Test, sides: tuple[Side, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (metric_name(name), quantity(found.point, name)) for name in test.beside if (found := level(sides[0], name))
    )


def ordered_families(chosen: list[Side], along: str) -> list[list[Side]]:
    """Families along a field, ascending; sides without a value of it are left out."""
    found = families([side for side in chosen if side.field(along) is not None], [along])
    return [sorted(family, key=lambda side: _sortable(side.field(along))) for family in found]


def _sortable(value: object) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))
