"""Do a few traced iterations stand for many? The same training traced for either, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, number, with_interval
from labkit.analysis.studies.gan.seen import Sample, of, samples, traced_after
from labkit.analysis.studies.gan.utilisations import share_words
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Side
from labkit.registry import METRICS
from labkit.results import from_trace as traced
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.traced import KernelClass
from labkit.trial import Trial

POINTS = 100.0  # of a share
LEAST_POINTS = 0.05  # fewer round to none
MEASURED = {
    "busy_step_s": "{ran} of an iteration",
    "traced_step_s": "an iteration under the profiler",
    "profiled_utilisation": "{ran}' share of it",
    "compute_utilisation": "{ran}' share of a timed one",
}
OF_TIMED = "compute_utilisation"  # on a CPU it is of the traced ones too


def sentence(results: Results) -> str:
    """What the device does in few iterations and in many, and the paper's share of either; empty without two traces."""
    found = []
    for sample in samples(results):
        busy = [of(results, one, "busy_step_s") for one in (sample.few, sample.many)]
        if not busy[0] or not busy[1]:
            continue
        few, many = (with_interval(one, "busy_step_s") for one in busy if one)
        said = [
            f"At mini-batch {sample.few.batch:,} {_ran(results)} run for {few} of an iteration by "
            f"{sample.few.traced_iterations} and for {many} by {sample.many.traced_iterations}"
        ]
        said += _apart(results, sample.few, sample.many)
        shares = [of(results, one, "profiled_utilisation") for one in (sample.few, sample.many)]
        if shares[0] and shares[1]:
            told = [with_interval(one, "profiled_utilisation", 3) for one in shares if one]
            said.append(
                f"their share of the profiled iterations, which is the paper's, is {told[0]} and {told[1]}, as such an "
                f"iteration takes {_scatter(results, sample)}"
            )
        early = of(results, sample.early, "busy_step_s") if sample.early else None
        if early and sample.early:
            places = [f"{traced_after(results, one):,}" for one in (sample.early, sample.few)]
            said.append(
                f"traced after {places[0]} iterations and not after {places[1]}, they run for "
                f"{with_interval(early, 'busy_step_s')}"
            )
        found.append("; ".join(said))
    return f"A few iterations beside many. {'. '.join(found)}." if found else ""


def _scatter(results: Results, sample: Sample) -> str:
    """`23.6 to 28.1 ms in the few and 31.5 to 32.9 ms in the many, by pass`."""
    said, passes = [], 0
    for trial, which in ((sample.few, "few"), (sample.many, "many")):
        values = [1e3 * value for value in Side(results, trial).values("traced_step_s").values()]
        said.append(f"{' to '.join(dict.fromkeys(map(number, (min(values), max(values)))))} ms in the {which}")
        passes = max(passes, len(values))
    return f"{' and '.join(said)}{', by pass' if passes > 1 else ''}"


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
    later = any((traced_after(results, one.few) or 0) > one.few.steps_before for one in known)
    early = " Early: as few, traced sooner." if heads.early else ""
    return Table(
        pd.DataFrame(rows, dtype=object),
        f"The same training traced for few and for many iterations ({counts}), after "
        f"{before}{' or more' if later else ''}.{early}{_in_pieces(results, known)} Classes: "
        f"shares of the {_ran(results)}' time, means over passes. "
        f"{engines.conditions(results, [sample.few for sample in known])}.",
    )


def _in_pieces(results: Results, known: Sequence[Sample]) -> str:
    """That the many are traced in pieces, each by a profiler that begins anew; empty where they are not."""
    traces = [trace for one in known for record in results.ok(one.many) if (trace := traced.trace_of(record))]
    longest = max((piece.steps for trace in traces for piece in trace.pieces), default=0)
    if not any(len(trace.pieces) > 1 for trace in traces):
        return ""
    return f" The many are traced in pieces of {longest} at most, each by a profiler that begins anew."


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
    rows, trials = [], (sample.early, sample.few, sample.many)
    for metric, what in MEASURED.items():
        early, few, many = (of(results, one, metric) if one else None for one in trials)
        if not few or not many or (metric == OF_TIMED and results.profile.device.kind == "cpu"):
            continue
        apart = _share_apart if METRICS[metric].share else _relative
        shown = {
            heads.early: with_interval(early, metric, 3) if early else None,
            heads.few: with_interval(few, metric, 3),
            heads.many: with_interval(many, metric, 3),
            "difference": apart(few, many),
            heads.early and "early - few": apart(early, few) if early else None,
        }
        rows.append(heads.row(sample, what.format(ran=_ran(results)), shown))
    return rows


def _classes(results: Results, sample: Sample, heads: Heads) -> list[dict[str, object]]:
    rows, sooner = [], class_shares(results, sample.early, sample.few) if sample.early else {}
    for name, (few, many) in class_shares(results, sample.few, sample.many).items():
        early = sooner[name][0] if name in sooner else 0.0 if sooner else None
        shown = {
            heads.early: share_words(early) if early is not None else None,
            heads.few: share_words(few),
            heads.many: share_words(many),
            "difference": _points(few - many),
            heads.early and "early - few": _points(early - few) if early is not None else None,
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


def _relative(few: Interval, many: Interval) -> str:
    shown = f"{(few.point / many.point - 1) * 100:.1f} %"
    return "0.0 %" if shown == "-0.0 %" else shown
