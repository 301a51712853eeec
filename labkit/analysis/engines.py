"""Trials of several engines: values as rows, ratios within passes, what an engine costs once, what its gate saw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.analysis.draw import ENGINES
from labkit.analysis.format import least_to_most, listing
from labkit.analysis.speed import OF_MODELS, input_words, name_of, title
from labkit.analysis.table import Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.profile import Profile
from labkit.recipes import engine_name, is_plain, tuned
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, ratio_interval
from labkit.trial import ASKED_AFTER, PRECISIONS, Trial

MANY = 4  # names in brackets of a caption
ALIKE = ("workload", "model", "image_px", "batch", "copies", "device", "threads")  # what an engine leaves as it is
VALUES = ["trial", "model", "image_px", "batch", "precision", "engine", "value", "low", "high", "n", "failed"]


def timed(results: Results) -> list[Trial]:
    """The training trials that were timed in blocks, in order; training runs are `convergence.runs`."""
    return in_order(results.trials(workload="train", epochs=0))


def in_order(trials: Sequence[Trial]) -> list[Trial]:
    """By model, input and batch; within these plain before tuned, and FP32 before what is narrower."""
    places = list(dict.fromkeys((trial.model, trial.image_px, trial.batch) for trial in trials))
    order = list(ENGINES)

    def place(trial: Trial) -> tuple[int, int, int]:
        about = places.index((trial.model, trial.image_px, trial.batch))
        return about, order.index(engine_name(trial)), PRECISIONS.index(trial.precision)

    return sorted(trials, key=place)


def values(results: Results, trials: Sequence[Trial], metric: str) -> pd.DataFrame:
    """One row a trial: a metric in SI units with its interval, or why there is none."""
    rows = [
        {**_about(trial, trials), **ends(results.interval(trial, metric)), "failed": failure(results, trial)}
        for trial in trials
    ]
    return pd.DataFrame(rows, columns=VALUES)


def ratios(results: Results, pairs: Iterable[tuple[Trial, Trial]], metric: str) -> pd.DataFrame:
    """One row a pair (over, under): the ratio of a metric, formed within each pass first. Named by the first."""
    known = list(pairs)
    beside = [over for over, _ in known]
    rows = [
        {
            **_about(over, beside),
            **ends(ratio(results, over, under, metric)),
            "failed": failure(results, over) or failure(results, under),
        }
        for over, under in known
    ]
    return pd.DataFrame(rows, columns=VALUES)


def like(results: Results, trial: Trial, **fields: Any) -> Trial | None:
    """The trial that differs from this one in these fields alone; else, whatever is asked of it once it was timed."""
    exact = replace(trial, **fields)
    if exact in results.by_trial:
        return exact

    def timed_part(one: Trial) -> Trial:
        return replace(one, **{name: getattr(Trial(), name) for name in ASKED_AFTER})

    wanted = timed_part(exact)
    return next((other for other in results.by_trial if timed_part(other) == wanted), None)


def ratio(results: Results, over: Trial, under: Trial | None, metric: str) -> Interval | None:
    """A metric of one trial over another's, formed within each pass first; None without a pass that holds both."""
    if under is None:
        return None
    return ratio_interval(results.values(over, metric), results.values(under, metric))


def tuned_sentence(results: Results, known: Sequence[Trial]) -> str:
    """How many times the plain loop's images/s the tuned engines reach, the least and the most."""
    data = ratios(results, over_plain(results, known), "images_per_s").dropna(subset=["value"])
    reached = least_to_most((row["value"], f"{ratio_words(row)} ({row['trial']})") for _, row in data.iterrows())
    part = "; part of it is precision" if len({trial.precision for trial in known}) > 1 else ""
    return f"The tuned engines reach {reached} of the plain loop's images/s{part}." if reached else ""


def ratio_words(row: Any) -> str:
    """A row of `ratios`: `1.9x [1.85, 1.95]`."""
    return shown_effect(
        Interval(row["value"], _known(row["low"]), _known(row["high"]), row["n"]), "images_per_s", "ratio"
    )


def _known(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _about(trial: Trial, beside: Sequence[Trial]) -> dict[str, Any]:
    return {
        "trial": name_of(trial, beside),
        "model": title(trial),
        "image_px": trial.image_px,
        "batch": trial.batch,
        "precision": trial.precision.upper(),
        "engine": engine_name(trial),
    }


def ends(interval: Interval | None) -> dict[str, Any]:
    """An interval as the columns `value`, `low`, `high`, `n`."""
    if interval is None:
        return {"value": None, "low": None, "high": None, "n": 0}
    return {"value": interval.point, "low": interval.low, "high": interval.high, "n": interval.n}


def failure(results: Results, trial: Trial) -> str | None:
    """Why a trial gave no result in any pass; None when it gave one."""
    if results.ok(trial):
        return None
    records = results.by_trial.get(trial, [])
    reason = next((record.reason for record in records if record.reason), None)
    status = records[0].status if records else "no record"
    return f"{status}: {reason}" if reason else status


def nothing(results: Results) -> Text:
    """The headline of a page whose trials all failed, or of which there are none."""
    reasons = [record.reason for record in results.failures() if record.reason]
    if results:
        return Text(f"No trial gave a result. The first reason: {reasons[0] if reasons else 'not recorded'}.")
    return Text(
        f"Nothing was measured on {results.profile.title} yet: this page shows what the hardware allows and how the "
        f"question will be answered."
    )


def status_without_result(results: Results, trial: Trial) -> str | None:
    """The status of a trial that gave no result, for a column: the reason stands in the table of failures."""
    why = failure(results, trial)
    return why.split(":")[0] if why else None


def conditions(results: Results, trials: Sequence[Trial]) -> str:
    """What a caption must name, engine by engine: `plain in FP32, contiguous, sgd; graph in BF16, …`."""
    if not trials:
        return results.describe()
    engines: dict[tuple[str, str, str], list[str]] = {}
    for trial in trials:
        updated = f", {trial.optimizer}" if trial.workload in ("train", "gan") else ""
        how = (trial.precision.upper(), trial.memory_format.replace("_", " "), updated)
        engines.setdefault(how, []).append(engine_name(trial))
    by_rest: dict[tuple[str, str, str], list[str]] = {}
    for (precision, layout, optimizer), names in engines.items():  # precisions of one engine stand together
        by_rest.setdefault((listing(list(dict.fromkeys(names))), layout, optimizer), []).append(precision)
    parts = [
        f"{who} in {listing(list(dict.fromkeys(of)))}, {layout}{how}" for (who, layout, how), of in by_rest.items()
    ]
    batches = listing([f"{batch:,}" for batch in sorted({trial.batch for trial in trials})])
    data = listing(sorted({trial.data for trial in trials}))
    return f"{'; '.join(parts)}; {input_words(trials)}, batch {batches}, on {data}; {results.describe()}"


def concise(frame: pd.DataFrame, seldom: Sequence[str] = ()) -> pd.DataFrame:
    """A table without what its caption says of all rows (`conditions`: n, batch, px), and without empty columns.

    Of the columns named in `seldom` those go that hold nothing at all.
    """
    once = [name for name in ("n", "batch", "px") if name in frame and frame[name].nunique(dropna=False) == 1]
    empty = [name for name in seldom if name in frame and frame[name].isna().all()]
    return frame.drop(columns=[*once, *empty])


def failures_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Which of these have no result, by status, for a caption; empty when all have one."""
    by_status: dict[str, list[str]] = {}
    for trial in trials:
        if found := failure(results, trial):
            by_status.setdefault(found.split(":")[0], []).append(name_of(trial, trials))
    words = {"oom": "out of memory", "unsupported": "not supported here"}
    said = "; ".join(f"{words.get(status, status)}: {_some(names)}" for status, names in by_status.items())
    return f" Crosses have no result ({said})." if said else ""


def _some(names: list[str]) -> str:
    """A few names; of many only how many."""
    return "; ".join(names) if len(names) <= MANY else f"{len(names)} trials"


def plain_of(results: Results, trial: Trial) -> Trial | None:
    """The plain trial of the same model, input and batch; None where there is none."""
    alike = {name: getattr(trial, name) for name in ALIKE}
    same = results.trials(**alike, epochs=0)
    return next((other for other in same if is_plain(other)), None)


def over_plain(results: Results, trials: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """Each tuned trial with its plain one."""
    found = [(trial, plain_of(results, trial)) for trial in trials if not is_plain(trial)]
    return [(trial, plain) for trial, plain in found if plain is not None]


def over_fp32(results: Results, trials: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
    """Each trial in a lower precision with the one that differs from it in nothing else."""
    lower = [(trial, replace(trial, precision="fp32")) for trial in trials if trial.precision != "fp32"]
    return [(trial, other) for trial, other in lower if other in results.by_trial]


def left_out(profile: Profile, trials: Sequence[Trial], scale: str) -> Text:
    """Which engines that compile this scale goes without, and which kinds of trial there are."""
    compiling = [name for name, recipe in tuned(profile.device.kind).items() if "compile" in recipe.get("engine", "")]
    absent = [name for name in compiling if all(trial.engine != name for trial in trials)]
    names = list(dict.fromkeys(engine_name(trial) for trial in trials if trial.workload in OF_MODELS))
    said = f"Engines at scale {scale}: {listing(names)}."
    if absent:
        said += f" Left out at this scale, because compiling takes longer than it may: {listing(absent)}."
    return Text(said)
