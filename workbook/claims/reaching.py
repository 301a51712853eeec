"""Epochs to a target that some runs never reach: such a run counts as all of its epochs, which is a lower bound.

A ratio is then restricted to the epochs that were run (a restricted mean in survival analysis), and its verdict is
one-sided. A run that needs at least 8 epochs needs more than a run that needs 3. The records do not show whether it
needs at most 10.
"""

from __future__ import annotations

from dataclasses import replace

from workbook.claims.evidence import Side
from workbook.claims.verdict import Bounds, Case
from workbook.records import Record
from workbook.results.from_result import value_of
from workbook.results.intervals import ratio_of_passes
from workbook.statistics import Interval

METRIC = "epochs_to_target"


def short(side: Side) -> list[Record]:
    """Return the finished runs of a trial that did not reach their target."""
    return [record for record in side.results.ok(side.trial) if value_of(record, METRIC) is None]


def is_one_sided(over: Side, under: Side, metric: str) -> bool:
    """Return whether the metric is epochs to a target and some run of either side did not reach it."""
    if metric != METRIC or not (over.trial.target_top1 and under.trial.target_top1):
        return False
    return bool(short(over) or short(under))


def least_ratio(over: Side, under: Side) -> Interval | None:
    """Return the ratio of epochs to the target; a run that did not reach it counts as all its epochs."""
    return ratio_of_passes(least(over), least(under), paired=over.same_records(under))


def least(side: Side) -> dict[int, float]:
    """Return pass number -> epochs to the target, or all epochs of a run that did not reach it."""
    reached = side.values(METRIC)
    return {record.pass_number: float(side.trial.epochs) for record in short(side)} | reached


def judged(case: Case, over: Side, under: Side) -> Case:
    """Return the case of a `least_ratio`; its verdict stands only if more epochs could not change it."""
    if case.effect is None or case.bounds is None:
        return case
    late, early = bool(short(over)), bool(short(under))
    shortfall = "; ".join(_said(side) for side in (over, under) if short(side))
    stands = (late != early) and _stands(case.bounds, case.effect, up=late)
    verdict = case.verdict if stands else "inconclusive"
    reason = "; ".join(part for part in (case.reason, shortfall) if part)
    return replace(case, verdict=verdict, reason=reason, is_least=late and not early)


def _stands(bounds: Bounds, effect: Interval, *, up: bool) -> bool:
    """Return whether moving the effect up (or down) leaves the verdict unchanged."""
    verdict = bounds.verdict(effect)
    beyond = bounds.high if up else bounds.low
    if bounds.outside or verdict == "inconclusive":
        return False
    if verdict == "replicated":
        return beyond is None  # the bound is open on that side
    ends = (effect.low, bounds.high) if up else (bounds.low, effect.high)
    return None not in ends and ends[0] > ends[1]  # type: ignore[operator]


def _said(side: Side) -> str:
    late, of = len(short(side)), len(side.results.ok(side.trial))
    target, epochs = f"{side.trial.target_top1:.0%}", side.trial.epochs
    return f"{late} of {of} runs did not reach {target} in {epochs} epochs and count as {epochs}, a lower bound"
