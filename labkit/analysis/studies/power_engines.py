"""What a tuned engine does to power and to energy: more watts for fewer seconds, beside the plain loop."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis.engines import conditions, over_plain, ratio
from labkit.analysis.format import quantity
from labkit.analysis.observations import mean_interval, mean_ratio
from labkit.analysis.speed import name_of, title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import engine_name
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

Pair = tuple[Trial, Trial]  # tuned, plain
OF_TELEMETRY = {"power": "power_w", "energy an image": "energy_per_image_j", "above idle": "net_energy_per_image_j"}


def pairs(results: Results, trials: Sequence[Trial]) -> list[Pair]:
    """Each tuned training with the plain one of its model and batch, where both have energy of one pass at least."""
    known = over_plain(results, [trial for trial in trials if trial.workload == "train"])
    return [pair for pair in known if mean_ratio(results, *pair, "energy_per_image_j")]


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """One row a tuned training: images/s, power and energy an image as ratios to the plain loop's."""
    found = pairs(results, trials)
    if not found:
        return Text("What tuning does to energy is not told: no tuned training has joules beside plain ones.")
    tuned = [trial for trial, _ in found]
    rows = [
        {
            "tuned, over plain": name_of(trial, tuned),
            "images/s": _words(ratio(results, trial, plain, "images_per_s")),
            **{name: _words(mean_ratio(results, trial, plain, metric)) for name, metric in OF_TELEMETRY.items()},
        }
        for trial, plain in found
    ]
    frame = pd.DataFrame(rows).dropna(axis=1, how="all")
    idle = " Above idle: without what a process that does nothing draws." if "above idle" in frame else ""
    both = [*tuned, *(plain for _, plain in found)]
    part = " Part of it is precision." if len({trial.precision for trial in both}) > 1 else ""
    return Table(
        frame.astype(object).where(frame.notna(), None),
        "Tuned training over the plain loop of the same model and batch: ratios within each pass, 95 % interval. "
        f"Energy is power over images/s: an engine that waits less is done sooner, whatever it draws.{part}{idle} "
        f"{conditions(results, both)}.",
    )


def sentence(results: Results, trials: Sequence[Trial]) -> str:
    """Where tuning saves most energy: how much power, and how much energy an image, over the plain loop; else empty."""
    known = [
        (energy, power, trial)
        for trial, plain in pairs(results, trials)
        if (energy := mean_ratio(results, trial, plain, "energy_per_image_j"))
        and (power := mean_ratio(results, trial, plain, "power_w"))
    ]
    if not known:
        return ""
    energy, power, trial = min(known, key=lambda one: one[0].point)
    cost = mean_interval(results, trial, "energy_per_image_j")
    costs = f" ({quantity(cost.point, 'energy_per_image_j', 4)})" if cost else ""
    what = title(trial) if len({one.batch for *_, one in known}) == 1 else f"{title(trial)} at batch {trial.batch:,}"
    return (
        f"Tuned ({engine_name(trial)}, {trial.precision.upper()}) {what} draws {_words(power)} the "
        f"power of its plain loop, and an image costs {_words(energy)} the energy{costs}."
    )


def _words(effect: Interval | None) -> str | None:
    return None if effect is None else shown_effect(effect, "power_w", "ratio")  # a ratio has no unit
