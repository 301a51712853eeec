"""Which trials of a WGAN a page shows, what they are called, and their metrics over passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from labkit.analysis.results import Results
from labkit.analysis.speed import word
from labkit.analysis.verdicts.evidence import Side, level
from labkit.recipes import engine_name
from labkit.statistics import Interval
from labkit.trial import PRECISIONS, Trial


def swept(results: Results) -> list[Trial]:
    """The trials over mini-batches, each with its short trace: constraint, engine, precision and batch in order."""
    found = results.trials(workload="gan", samples=0)
    short = [trial for trial in found if trial not in {long for _, long in sampling_pairs(results)}]
    return sorted(short, key=_place)


def _place(trial: Trial) -> tuple[str, str, int, int]:
    return trial.constraint, trial.engine, PRECISIONS.index(trial.precision), trial.batch


def sampling_pairs(results: Results) -> list[tuple[Trial, Trial]]:
    """Trials that differ in nothing but how many iterations were traced: the fewest and the most."""
    alike: dict[Trial, list[Trial]] = {}
    for trial in sorted(results.trials(workload="gan", samples=0), key=lambda one: one.traced_iterations):
        if trial.traced_iterations:
            alike.setdefault(replace(trial, traced_iterations=0, traced_s=0), []).append(trial)
    return [(of[0], of[-1]) for of in alike.values() if len(of) > 1]


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
