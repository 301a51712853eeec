"""Do a few traced iterations stand for many? The same training traced for either, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from labkit.analysis import engines, traced
from labkit.analysis.format import listing, percent, with_interval
from labkit.analysis.results import Results
from labkit.analysis.studies.gan.seen import Sample, of, samples, traced_after
from labkit.analysis.studies.gan.utilisations import share_words
from labkit.analysis.table import Table, Text
from labkit.registry import METRICS
from labkit.statistics import Interval, log_interval
from labkit.traced import KernelClass
from labkit.trial import Trial

POINTS = 100.0  # of a share
LEAST_POINTS = 0.05  # fewer round to none


def sentence(results: Results) -> str:
    """Computing, classes and step time by few iterations, later and sooner, and by many; empty where none is traced."""
    found = []
    for sample in samples(results):
        few, many = (of(results, one, "compute_utilisation") for one in (sample.few, sample.many))
        if few and many:
            said = [
                f"At mini-batch {sample.few.batch:,} the share is {percent(few.point)} by "
                f"{sample.few.traced_iterations} and {percent(many.point)} by {sample.many.traced_iterations}"
            ]
            said += _apart(results, sample.few, sample.many)
            steps = [of(results, one, "traced_step_s") for one in (sample.few, sample.many)]
            if steps[0] and steps[1]:
                said.append(_longer(steps[0], steps[1]))
            early = of(results, sample.early, "compute_utilisation") if sample.early else None
            if early and sample.early:
                places = [f"{traced_after(results, one):,}" for one in (sample.early, sample.few)]
                said.append(
                    f"traced after {places[0]} iterations and not after {places[1]} it is {percent(early.point)} by "
                    f"{sample.early.traced_iterations}"
                )
                said += _apart(results, sample.early, sample.few)
            found.append("; ".join(said))
    return f"A few iterations beside many. {'. '.join(found)}." if found else ""


def _apart(results: Results, one: Trial, other: Trial) -> list[str]:
    shares = class_shares(results, one, other)
    most = max((abs(a - b) for a, b in shares.values()), default=0.0)
    return [f"classes of {_ran(results)} differ {_at_most(most)}"] if shares else []


def table(results: Results) -> Table | Text:
    """What few iterations, later and sooner, and many say of the same training, side by side."""
    known = samples(results)
    heads = Heads.of(known)
    rows = [row for sample in known for row in [*_measured(results, sample, heads), *_classes(results, sample, heads)]]
    if not rows:
        return Text("No training was traced twice, so what a few iterations stand for can't be said here.")
    before = listing([f"{count:,}" for count in sorted({sample.few.steps_before for sample in known})])
    counts = listing(
        list(dict.fromkeys(f"{one.few.traced_iterations} and {one.many.traced_iterations}" for one in known))
    )
    early = " Early: as few, traced sooner. Its difference is to the few." if heads.early else ""
    return Table(
        pd.DataFrame(rows, dtype=object),
        f"The same training traced for few and for many iterations ({counts}), after "
        f"{before} or more.{early} Classes: shares of the {_ran(results)}' time, means over passes. "
        f"{engines.conditions(results, [sample.few for sample in known])}.",
    )


class Heads(NamedTuple):
    """Names of the columns; no early one where nothing was traced sooner."""

    few: str
    many: str
    early: str | None

    @classmethod
    def of(cls, known: Sequence[Sample]) -> Heads:
        """The numbers of iterations where they are the same for all."""
        sooner = [sample.early for sample in known if sample.early]
        return cls(
            _head([sample.few for sample in known], "few"),
            _head([sample.many for sample in known], "many"),
            f"{_head(sooner, 'few')} early" if sooner else None,
        )

    def row(self, sample: Sample, what: str, shown: dict[str | None, str | None]) -> dict[str, object]:
        """A row of the table."""
        return {"mini-batch": sample.few.batch, "what": what, **{name: of for name, of in shown.items() if name}}


def _measured(results: Results, sample: Sample, heads: Heads) -> list[dict[str, object]]:
    rows = []
    for metric in ("compute_utilisation", "traced_step_s"):
        few, many = (of(results, one, metric) for one in (sample.few, sample.many))
        early = of(results, sample.early, metric) if sample.early else None
        if not few or not many:
            continue
        share = METRICS[metric].share
        apart = _share_apart if share else _relative
        shown = {
            heads.early: with_interval(early, metric) if early else None,
            heads.few: with_interval(few, metric),
            heads.many: with_interval(many, metric),
            "difference": apart(few, many),
            heads.early and "early, difference": apart(early, few) if early else None,
        }
        rows.append(heads.row(sample, "computing" if share else "step under the profiler", shown))
    busy = {one: _ran_s(results, one) for one in (sample.early, sample.few, sample.many) if one}
    few, many, early = (busy.get(one) if one else None for one in (sample.few, sample.many, sample.early))
    if few and many:
        shown = {
            heads.early: with_interval(early, "step_s") if early else None,
            heads.few: with_interval(few, "step_s"),
            heads.many: with_interval(many, "step_s"),
            "difference": _relative(few, many),
            heads.early and "early, difference": _relative(early, few) if early else None,
        }
        rows.append(heads.row(sample, f"{_ran(results)} of a step", shown))
    return rows


def _ran_s(results: Results, trial: Trial) -> Interval | None:
    """Seconds of a traced step in which something ran, over passes: no waiting of the host is in it."""
    found = [trace.busy_s / trace.steps for record in results.ok(trial) if (trace := traced.trace_of(record))]
    return log_interval(found) if found and min(found) > 0 else None


def _classes(results: Results, sample: Sample, heads: Heads) -> list[dict[str, object]]:
    rows, sooner = [], class_shares(results, sample.early, sample.few) if sample.early else {}
    for name, (few, many) in class_shares(results, sample.few, sample.many).items():
        early = sooner[name][0] if name in sooner else 0.0 if sooner else None
        shown = {
            heads.early: share_words(early) if early is not None else None,
            heads.few: share_words(few),
            heads.many: share_words(many),
            "difference": _points(few - many),
            heads.early and "early, difference": _points(early - few) if early is not None else None,
        }
        rows.append(heads.row(sample, name.replace("_", " "), shown))
    return rows


def _share_apart(one: Interval, other: Interval) -> str:
    return _points(one.point - other.point)


def _head(trials: Sequence[Trial], otherwise: str) -> str:
    """`2 traced`, where all were asked for as many iterations."""
    counts = {trial.traced_iterations for trial in trials}
    return f"{counts.pop():,} traced" if len(counts) == 1 else otherwise


def class_shares(results: Results, short: Trial, long: Trial) -> dict[KernelClass, tuple[float, float]]:
    """Of each class its share of the kernels' time by either trace, means over passes, the largest first."""
    found = [_mean_shares(results, one) for one in (short, long)]
    if not all(found):
        return {}
    few, many = found
    names = sorted({*few, *many}, key=lambda name: -many.get(name, 0.0))
    return {name: (few.get(name, 0.0), many.get(name, 0.0)) for name in names}


def _mean_shares(results: Results, trial: Trial) -> dict[KernelClass, float]:
    passes = [traced.class_shares(one) for record in results.ok(trial) if (one := traced.trace_of(record))]
    names = dict.fromkeys(name for shares in passes for name in shares)
    return {name: fmean(shares.get(name, 0.0) for shares in passes) for name in names}


def _ran(results: Results) -> str:
    return "operators" if results.profile.device.kind == "cpu" else "kernels"


def _points(apart: float) -> str:
    """A difference of shares: `0.9 points`."""
    shown = f"{apart * POINTS:.1f}"
    return f"{'0.0' if shown == '-0.0' else shown} points"


def _at_most(apart: float) -> str:
    """`by 0.9 points at most`."""
    return f"by {_points(apart)} at most" if apart * POINTS >= LEAST_POINTS else f"by less than {LEAST_POINTS} points"


def _longer(few: Interval, many: Interval) -> str:
    """`a traced step takes 14.5 % longer in the few`."""
    shown = _relative(few, many)
    if shown == "0.0 %":
        return "a traced step takes as long in either"
    which = "shorter" if shown.startswith("-") else "longer"
    return f"a traced step takes {shown.removeprefix('-')} {which} in the few"


def _relative(few: Interval, many: Interval) -> str:
    shown = f"{(few.point / many.point - 1) * 100:.1f} %"
    return "0.0 %" if shown == "-0.0 %" else shown
