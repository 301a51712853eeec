"""Do a few traced iterations stand for many? The same training traced for either, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from labkit.analysis import engines, traced
from labkit.analysis.format import listing, percent, with_interval
from labkit.analysis.results import Results
from labkit.analysis.studies.gan.seen import of, sampling_pairs
from labkit.analysis.studies.gan.utilisations import share_words
from labkit.analysis.table import Table, Text
from labkit.registry import METRICS
from labkit.statistics import Interval
from labkit.traced import KernelClass
from labkit.trial import Trial

POINTS = 100.0  # of a share


def sentence(results: Results) -> str:
    """Computing, classes and step time by few iterations and by many; empty where nothing was traced twice."""
    found = []
    for short, long in sampling_pairs(results):
        few, many = (of(results, one, "compute_utilisation") for one in (short, long))
        if few and many:
            said = [
                f"at mini-batch {short.batch:,} the share is {percent(few.point)} by {short.traced_iterations} and "
                f"{percent(many.point)} by {long.traced_iterations}"
            ]
            if shares := class_shares(results, short, long):
                apart = max(abs(a - b) for a, b in shares.values())
                said.append(f"classes of {_ran(results)} differ by {_points(apart)} at most")
            steps = [of(results, one, "traced_step_s") for one in (short, long)]
            if steps[0] and steps[1]:
                said.append(_longer(steps[0], steps[1]))
            found.append("; ".join(said))
    return f"A few iterations beside many: {'. '.join(found)}." if found else ""


def table(results: Results) -> Table | Text:
    """What few and many iterations say of the same training, side by side."""
    rows = []
    pairs = sampling_pairs(results)
    few_head, many_head = (_head([pair[at] for pair in pairs], word) for at, word in enumerate(("few", "many")))
    for short, long in pairs:
        for metric in ("compute_utilisation", "traced_step_s"):
            few, many = (of(results, one, metric) for one in (short, long))
            if few and many:
                about = METRICS[metric]
                rows.append(
                    {
                        "mini-batch": short.batch,
                        "what": "computing" if about.share else "step under the profiler",
                        few_head: with_interval(few, metric),
                        many_head: with_interval(many, metric),
                        "difference": _points(few.point - many.point) if about.share else _relative(few, many),
                    }
                )
        for name, (one, other) in class_shares(results, short, long).items():
            rows.append(
                {
                    "mini-batch": short.batch,
                    "what": name.replace("_", " "),
                    few_head: share_words(one),
                    many_head: share_words(other),
                    "difference": _points(one - other),
                }
            )
    if not rows:
        return Text("No training was traced twice, so what a few iterations stand for can't be said here.")
    before = listing([f"{count:,}" for count in sorted({short.steps_before for short, _ in pairs})])
    counts = listing(list(dict.fromkeys(f"{a.traced_iterations} and {b.traced_iterations}" for a, b in pairs)))
    return Table(
        pd.DataFrame(rows, dtype=object),
        f"The same training traced for few and for many iterations ({counts}), after "
        f"{before} or more. Classes: shares of the {_ran(results)}' time, means over passes. "
        f"{engines.conditions(results, [short for short, _ in pairs])}.",
    )


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
