"""Which trials of a WGAN a page shows, what they are called, and their metrics over passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from labkit.analysis.speed import word
from labkit.analysis.verdicts.evidence import Side, level
from labkit.recipes import engine_name
from labkit.results import from_trace as traced
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import PRECISIONS, Trial


def swept(results: Results) -> list[Trial]:
    """The trials over mini-batches, each with its short trace: constraint, engine, precision and batch in order.

    Those traced as most are, for so many iterations after so many; the others show whether that matters.
    """
    found = sorted(results.trials(workload="gan", samples=0), key=_traced)
    usual = Counter(map(_traced, found)).most_common(1)
    return sorted((trial for trial in found if _traced(trial) == usual[0][0]), key=_place)


def _traced(trial: Trial) -> tuple[int, int]:
    """How many iterations were traced, after how many."""
    return trial.traced_iterations, trial.steps_before


def _place(trial: Trial) -> tuple[str, str, int, int]:
    return trial.constraint, trial.engine, PRECISIONS.index(trial.precision), trial.batch


class Sample(NamedTuple):
    """A training traced for few and for many iterations after as many, and, where there is one, for few before them."""

    few: Trial
    many: Trial
    early: Trial | None


def samples(results: Results) -> list[Sample]:
    """Trials that differ in nothing but how many iterations were traced, the fewest and the most; and the earlier."""
    asked = [trial for trial in results.trials(workload="gan", samples=0) if trial.traced_iterations]
    alike: dict[Trial, list[Trial]] = {}
    for trial in sorted(asked, key=_traced):
        alike.setdefault(replace(trial, traced_iterations=0, traced_s=0), []).append(trial)
    pairs = [(of[0], of[-1]) for of in alike.values() if len(of) > 1]
    return [Sample(few, many, _earlier(results, few, asked)) for few, many in pairs]


def _earlier(results: Results, few: Trial, among: Sequence[Trial]) -> Trial | None:
    """The same training, traced for as many iterations, but sooner: in fact, for a timed part may be long enough."""
    sooner = [one for one in among if one.steps_before < few.steps_before]
    found = next((one for one in sooner if replace(one, steps_before=few.steps_before) == few), None)
    first, later = (traced_after(results, one) if one else None for one in (found, few))
    return None if first is not None and later is not None and first >= later else found


def traced_after(results: Results, trial: Trial) -> int | None:
    """How many iterations came before the first traced one, the fewest of all passes; None without a trace."""
    found = [trace.steps_before for record in results.ok(trial) if (trace := traced.trace_of(record))]
    return min(found, default=None)


def sampled(results: Results) -> list[Trial]:
    """The trials whose generator was asked for images."""
    return [trial for trial in results.trials(workload="gan") if trial.samples]


def plain(trials: Sequence[Trial]) -> list[Trial]:
    """Of these the paper's own: eager, FP32, weights clipped."""
    about = {"engine": "eager", "precision": "fp32", "constraint": "clipping"}
    return [trial for trial in trials if all(getattr(trial, name) == value for name, value in about.items())]


def series_of(trial: Trial, beside: Sequence[Trial]) -> str:
    """What a trial is apart from its mini-batch: `eager, FP32`."""
    said = [engine_name(trial), trial.precision.upper()]
    if len({one.constraint for one in beside}) > 1:
        said.append(word(trial, "constraint"))
    return ", ".join(said)


def named(trial: Trial, beside: Sequence[Trial]) -> str:
    """A trial in a few words: `mini-batch 64, eager, FP32`."""
    return f"mini-batch {trial.batch:,}, {series_of(trial, beside)}"


def of(results: Results, trial: Trial, metric: str) -> Interval | None:
    """A metric of a trial over its passes, also of its trace or telemetry."""
    return level(Side(results, trial), metric)
