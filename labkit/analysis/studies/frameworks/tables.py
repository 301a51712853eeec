"""The tables of frameworks: images/s beside PyTorch's, and what each training took of the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, number, percent, with_interval
from labkit.analysis.observations import mean_interval, power_kind, readings, spread
from labkit.analysis.studies.frameworks.compared import (
    Setting,
    conditions,
    how,
    is_mastered,
    over_native,
)
from labkit.analysis.studies.frameworks.holding import by_whom
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results import roofline
from labkit.results.from_telemetry import energy_methods, why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


def speed(results: Results, trials: Sequence[Trial]) -> list[Table | Text]:
    """Images/s and the ratio to native PyTorch's: a table a network, a row a framework and engine."""
    if not trials:
        return [Text(f"There are no trainings of {results.profile.title} yet: nothing to show here.")]
    nominal = any(_bound(results, trial) for trial in trials)
    own = (
        ", of the tuned with their BF16 weights, which are fewer bytes to move" if any(map(is_mastered, trials)) else ""
    )
    bounded = f" Of roofline: of what the nominal peaks of {results.profile.title} allow{own}." if nominal else ""
    said = (
        "Over PyTorch: images/s over those of native PyTorch in the same precision by the same class of engine, eager "
        f"over eager and compiled over compiled, formed within each pass first.{bounded} "
        f"{conditions(results, trials)}. 95 % intervals."
    )
    return _by_setting(trials, lambda alike: _speed_frame(results, alike), said)


def _by_setting(
    trials: Sequence[Trial], frame_of: Callable[[list[Trial]], pd.DataFrame], said: str
) -> list[Table | Text]:
    """A table of each setting; what all of them say stands over the first."""
    by: dict[Setting, list[Trial]] = {}
    for trial in trials:
        by.setdefault(Setting.of(trial), []).append(trial)
    first = next(iter(by))
    return [
        Table(frame_of(alike), f"{setting.name}. {said if setting == first else 'As above.'}")
        for setting, alike in by.items()
    ]


def _speed_frame(results: Results, trials: Sequence[Trial]) -> pd.DataFrame:
    rows = []
    for trial in trials:
        ratio, rate = over_native(results, trial), results.interval(trial, "images_per_s")
        limit = _bound(results, trial)
        rows.append(
            {
                "": f"{how(trial)}, {trial.precision.upper()}",
                "images/s": with_interval(rate, "images_per_s", unit=False),
                "over PyTorch": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "of roofline": percent(rate.point / limit) if rate and limit else None,
                "no result": engines.status_without_result(results, trial),
            }
        )
    return engines.concise(pd.DataFrame(rows, dtype=object), ("over PyTorch", "of roofline", "no result"))


def _bound(results: Results, trial: Trial) -> float | None:
    """Images/s that the nominal peaks allow; None where the profile has none of the trial's precision."""
    ceilings = roofline.nominal_of(results.profile, trial)
    limit = roofline.bound(roofline.planned_work(trial), ceilings) if ceilings.flop_per_s else None
    return limit.images_per_s if limit else None


def use(results: Results, trials: Sequence[Trial]) -> list[Table | Text]:
    """What a training took: an epoch's time with its input, how busy the device was, power, energy; what held it."""
    known = [trial for trial in trials if results.ok(trial)]
    if not known:
        return [Text("No trial gave a result, so nothing can be said of time, use and energy.")]
    said = (
        f"Epoch: the time that {_images(results, known)} take at the measured images/s, with their way from the loader "
        "to the device and without a validation. One telemetry process watches all frameworks alike."
        f"{_used(results, known)} Cores: of the host, kept busy by the training's process.{_energy(results, known)} "
        f"{conditions(results, known)}. 95 % intervals."
    )
    shown = _by_setting(known, lambda alike: _use_frame(results, alike), said)
    held = by_whom(results, known)
    return [*shown, held] if held else shown


def _used(results: Results, trials: Sequence[Trial]) -> str:
    """What the columns of a device's use mean, of those that there are."""
    meant = {
        "utilisation": " Utilisation: time in which some kernel ran.",
        "sm_activity": " SM activity: the share of the multiprocessors that had work.",
    }
    told = [said for metric, said in meant.items() if any(spread(results, one, metric) for one in trials)]
    often = readings(results, trials, "utilisation")
    return "".join(told) + (f" Both by {often}." if len(told) > 1 and often else "")


USED = ("utilisation", "SM activity", "cores used", "power (W)", "mJ/image")


def _use_frame(results: Results, trials: Sequence[Trial]) -> pd.DataFrame:
    rows = []
    for trial in trials:
        busy, multiprocessors = (spread(results, trial, metric) for metric in ("utilisation", "sm_activity"))
        cores = mean_interval(results, trial, "cpu_cores_used")
        power, joules = mean_interval(results, trial, "power_w"), mean_interval(results, trial, "energy_per_image_j")
        rows.append(
            {
                "": f"{how(trial)}, {trial.precision.upper()}",
                "epoch (s)": with_interval(results.interval(trial, "epoch_s"), "epoch_s", 3, unit=False),
                "utilisation": percent(busy.mean) if busy else None,
                "SM activity": percent(multiprocessors.mean) if multiprocessors else None,
                "cores used": number(cores.point) if cores else None,
                "power (W)": with_interval(power, "power_w", 3, unit=False) if power else None,
                "mJ/image": with_interval(joules, "energy_per_image_j", 3, unit=False) if joules else None,
            }
        )
    return engines.concise(pd.DataFrame(rows, dtype=object), USED)


def _images(results: Results, trials: Sequence[Trial]) -> str:
    counts = sorted({int(images) for trial in trials if (images := results.fact(trial, "train_images"))})
    return f"the {listing([f'{count:,}' for count in counts])} training images" if counts else "the training images"


def _energy(results: Results, trials: Sequence[Trial]) -> str:
    """How power and energy were found, or why they are not there."""
    if not any(mean_interval(results, trial, "power_w") for trial in trials):
        return f" No power: {why_not(results, 'power_w')}."
    if not any(trial.energy_windows for trial in trials):
        return f" {power_kind(results)}. No trial asked for long windows, so there are no joules."
    if not any(mean_interval(results, trial, "energy_per_image_j") for trial in trials):
        return f" {power_kind(results)}. No joules: {why_not(results, 'energy_j')}."
    methods = listing(energy_methods(results))
    return f" {power_kind(results)}; joules an image where long windows were asked for, by {methods}."
