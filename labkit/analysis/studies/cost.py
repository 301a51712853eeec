"""What images cost on each side: joules, days, and money where a profile gives the price of an hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis.format import listing, number, with_interval
from labkit.analysis.observations import mean_interval
from labkit.analysis.speed import DEVICES
from labkit.analysis.studies.sides import SIDES, Setting, best_on, how, plain_on, settings
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Side, level
from labkit.profile import Profile
from labkit.registry import METRICS
from labkit.results.from_telemetry import energy_methods, why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

DAYS = "training_90_epochs_s"
COST = METRICS["cost_per_million_images"]


def per_million_images(results: Results, trial: Trial) -> Interval | None:
    """Cost of a million images in the profile's currency, with its interval; None without a price or images/s."""
    return level(Side(results, trial), COST.name)


def how_to_add(profile: Profile) -> str:
    """What a user does who wants prices on the page; empty where both sides have one."""
    wanted = [device for device in dict.fromkeys((profile.device.kind, "cpu")) if profile.price_of(device) is None]
    if not wanted:
        return ""
    whose = "on the CPU " if wanted == ["cpu"] and profile.device.kind == "cuda" else ""
    key = "cost.cpu_per_hour" if whose else "cost"
    return (
        f"Trials {whose}have no price, because the profile gives none: add `{key}` to params/{profile.name}.yaml "
        f"(params/h200.yaml shows how) and render again; nothing has to be measured for it."
    )


def joules(results: Results, trial: Trial) -> Interval | None:
    """Joules an image over the long energy windows; None where there are none or no meter."""
    return mean_interval(results, trial, "energy_per_image_j")


def cost_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Power, joules an image and cost of a million images of each trial of which any is known."""
    currency = results.profile.cost.currency if results.profile.cost else ""
    metered = [trial for trial in trials if trial.energy_windows]
    priced = [trial for trial in trials if results.profile.price_of(trial.device)]
    rows = []
    for trial in trials:
        power, energy = mean_interval(results, trial, "power_w"), joules(results, trial)
        cost = per_million_images(results, trial)
        if trial not in metered and cost is None:
            continue
        rows.append(
            {
                "": Setting.of(trial).name,
                "on": DEVICES[trial.device],
                "engine": how(trial),
                "power (W)": with_interval(power, "power_w", unit=False) if power else None,
                "mJ/image": with_interval(energy, "energy_per_image_j", unit=False) if energy else None,
                f"{currency} per million images": with_interval(cost, COST, unit=False) if cost else None,
            }
        )
    said = [_no_energy(results, metered, device) for device in SIDES]
    missing = " ".join(part for part in [*said, how_to_add(results.profile)] if part)
    frame = pd.DataFrame(rows, dtype=object)
    numbers = [name for name in frame.columns[3:] if not frame[name].isna().all()]
    if not numbers:
        return Text(missing or "No trial here asked for energy, and the profile gives no price.")
    frame = frame[[*frame.columns[:3], *numbers]]
    prices = "; ".join(
        f"{DEVICES[device]} {number(price.value)} {currency} an hour ({price.source})"
        for device in dict.fromkeys(trial.device for trial in priced)
        if (price := results.profile.price_of(device))
    )
    methods = f" Energy by {listing(energy_methods(results))}." if energy_methods(results) else ""
    return Table(
        frame,
        "Power and energy of what the trial ran on and no more: of a GPU the board, without the host that feeds it; of "
        f"a CPU its packages, without memory, board and the idle GPU beside it.{methods} "
        f"{f'Prices: {prices}. ' if prices else ''}{missing} {results.describe()}.",
    )


def _no_energy(results: Results, metered: Sequence[Trial], device: str) -> str:
    of = [trial for trial in metered if trial.device == device and results.ok(trial)]
    if not of or any(joules(results, trial) for trial in of):
        return ""
    return f"Energy of the {DEVICES[device]} can't be read: {why_not(results, 'energy_j', device)}."


def days_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Days that 90 epochs of 1.2 million images would take on each side, plain and best, at the measured images/s."""
    rows = []
    for setting in settings(trials):
        if setting.workload != "train":
            continue
        row: dict[str, Any] = {"": setting.name}
        for device in SIDES:
            for word, trial in (
                ("plain", plain_on(trials, setting, device)),
                ("best", best_on(results, trials, setting, device)),
            ):
                days = level(Side(results, trial), DAYS) if trial else None
                row[f"{DEVICES[device]}, {word} (days)"] = with_interval(days, DAYS, unit=False) if days else None
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object)
    known = [name for name in frame.columns[1:] if not frame[name].isna().all()]
    if not known:
        return Text("No training was measured, so nothing can be said of how many days it would take.")
    return Table(
        frame[["", *known]],
        "What 90 epochs of 1.2 million images would take at the images/s measured here in seconds: an extrapolation, "
        "as the Dell paper's is. Images of 32 px cost a fraction of those that data set has, so only rows of 224 px "
        f"can be held against it. {results.describe()}.",
    )
