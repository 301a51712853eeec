"""What has no result, and why: whole frameworks that are not here, engines that they lack, what did not fit."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analysis import engines
from labkit.analysis.format import listing
from labkit.analysis.studies.frameworks.compared import Setting, engine, framework
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


def failures_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Whose trials have no result, framework by framework, for a caption; empty when all have one."""
    lost: dict[str, int] = {}
    of: dict[str, int] = {}
    for trial in trials:
        of[framework(trial)] = of.get(framework(trial), 0) + 1
        if engines.failure(results, trial):
            lost[framework(trial)] = lost.get(framework(trial), 0) + 1
    said = [name if count == of[name] else f"{name} in {count} of {of[name]}" for name, count in lost.items()]
    return f" Crosses have no result: {listing(said)}." if said else ""


def reason(results: Results, trial: Trial) -> str | None:
    """Why a trial has no result, for a sentence that names its framework anyway; None when it has one."""
    why = engines.failure(results, trial)
    if why is None:
        return None
    return why.removeprefix("unsupported: ").removeprefix(f"{framework(trial)} can't run here: ").rstrip(".")


def sentence(results: Results, trials: Sequence[Trial]) -> str:
    """What has no result, and why: whole frameworks by their name alone."""
    lost: dict[str, list[Trial]] = {}
    for trial in trials:
        if why := reason(results, trial):
            lost.setdefault(why, []).append(trial)
    said = [f"No result of {_names(results, of, trials)} ({why})." for why, of in lost.items()]
    return " ".join(said)


def _names(results: Results, lost: Sequence[Trial], trials: Sequence[Trial]) -> str:
    """The frameworks of trials that were lost for one reason, with the engines where others of them have results."""
    parts: dict[str, list[str]] = {}
    for trial in lost:
        of_framework = [other for other in trials if other.framework == trial.framework]
        some = any(results.ok(other) for other in of_framework)
        parts.setdefault(framework(trial), []).extend([_what(results, trial, of_framework)] if some else [])
    return listing([f"{name}, {listing(list(dict.fromkeys(of)))}" if of else name for name, of in parts.items()])


def _what(results: Results, trial: Trial, beside: Sequence[Trial]) -> str:
    """A trial that failed among others of its framework: `XLA in BF16 (VGG-16, 32 px, batch 256)`."""
    several = " on several devices" if trial.devices > 1 else ""
    alike = [other for other in beside if (other.engine, other.devices > 1) == (trial.engine, trial.devices > 1)]
    if not any(results.ok(other) for other in alike):
        return f"{engine(trial)}{several}"
    return f"{engine(trial)} in {trial.precision.upper()}{several} ({Setting.of(trial).name})"


def ran_on(results: Results, name: str, device: str) -> bool:
    """Whether a framework has a result on a kind of device (`cuda` or `cpu`)."""
    return any(results.ok(trial) for trial in results.trials(framework=name, device=device))
