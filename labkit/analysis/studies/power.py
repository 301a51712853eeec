"""Power and energy in tables and sentences: what the board drew, what an image costs, what was throttled."""

from __future__ import annotations

import numpy as np
import pandas as pd

from labkit.analysis.engines import conditions
from labkit.analysis.format import listing, number, percent, with_interval
from labkit.analysis.observations import mean_interval, power_kind, spread
from labkit.analysis.speed import name_of, title, word
from labkit.analysis.studies import power_engines
from labkit.analysis.table import Table, Text
from labkit.models import MODELS
from labkit.profile import Profile, Sourced
from labkit.recipes import engine_name, is_plain
from labkit.results import roofline
from labkit.results.from_telemetry import energy_methods, idle_power, why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial


def prediction(profile: Profile, trials: list[Trial]) -> Table | Text:
    """Energy per image if the board drew its limit and the training reached its nominal roofline."""
    limit = profile.device.board_power_w
    rows = []
    for trial in trials:
        if trial.workload != "train" or trial.model not in MODELS:
            continue
        work = roofline.planned_work(trial)
        ceilings = roofline.nominal_of(profile, trial)
        bound = roofline.bound(work, ceilings) if ceilings.flop_per_s else None
        rows.append(
            {
                "model": title(trial),
                "batch": trial.batch,
                "precision": word(trial, "precision"),
                "GFLOP/image": work.flop / work.images / 1e9,
                "images/s at most": bound.images_per_s if bound else None,
                "mJ/image there at the board limit": _at_limit(limit, bound),
            }
        )
    frame = pd.DataFrame(rows).dropna(axis=1, how="all")
    if limit is None:
        return Table(frame, f"The work of each trial. The profile {profile.name!r} states no board power to expect.")
    return Table(
        frame,
        f"What an image would cost if the board drew its limit of {number(limit.value)} W ({limit.source}) and the "
        f"training ran at its nominal roofline. A loop that waits draws less and takes longer.",
    )


def _at_limit(limit: Sourced | None, bound: roofline.Bound | None) -> float | None:
    """Millijoules an image at the board's limit and the roofline."""
    return limit.value / bound.images_per_s * 1e3 if bound and limit else None


def power_table(results: Results, trials: list[Trial]) -> pd.DataFrame:
    """One row a trial: power, temperature and clock in the timed part; energy per image; SI units."""
    rows = []
    for trial in trials:
        power = spread(results, trial, "power_w")
        warm, clock = spread(results, trial, "temperature_c"), spread(results, trial, "sm_clock_hz")
        mean = mean_interval(results, trial, "power_w")
        gross, net = (mean_interval(results, trial, f"{kind}energy_per_image_j") for kind in ("", "net_"))
        efficiency, rate = mean_interval(results, trial, "images_per_s_per_w"), results.interval(trial, "images_per_s")
        rows.append(
            {
                "trial": name_of(trial, trials),
                "power_w": mean.point if mean else None,
                "power_low": mean.low if mean else None,
                "power_high": mean.high if mean else None,
                "power_min": power.low if power else None,
                "power_max": power.high if power else None,
                "temperature_c": warm.mean if warm else None,
                "temperature_max": warm.high if warm else None,
                "sm_clock_hz": clock.mean if clock else None,
                "sm_clock_min": clock.low if clock else None,
                "images_per_s": rate.point if rate else None,
                "gross_j": gross.point if gross else None,
                "gross_low": gross.low if gross else None,
                "gross_high": gross.high if gross else None,
                "net_j": net.point if net else None,
                "net_low": net.low if net else None,
                "net_high": net.high if net else None,
                "images_per_s_per_w": efficiency.point if efficiency else None,
                "n": mean.n if mean else 0,
            }
        )
    return pd.DataFrame(rows)


def summary(results: Results, trials: list[Trial]) -> Table | Text:
    """Idle, min, mean and max power, temperature, clock, energy per image and efficiency of each trial."""
    if not trials:
        return Text(f"There are no power records of {results.profile.title} yet: nothing to show here.")
    data = power_table(results, trials)
    if data["power_w"].isna().all():
        return Text(f"Power can't be read here: {why_not(results, 'energy_j')}. So there are no joules on this page.")
    limit = results.power_limit_w
    frame = pd.DataFrame(
        {
            "trial": data["trial"],
            "power (W)": [_with_range(mean_interval(results, trial, "power_w")) for trial in trials],
            "of the limit": [percent(w / limit, 3) if limit and not pd.isna(w) else None for w in data["power_w"]],
            "mJ/image": [_with_range(mean_interval(results, trial, "energy_per_image_j"), 1e3) for trial in trials],
            "above idle": data["net_j"] * 1e3,
            "images/s/W": data["images_per_s_per_w"],
            "lowest to highest (W)": [
                _between(a, b) for a, b in zip(data["power_min"], data["power_max"], strict=True)
            ],
            "°C": data["temperature_c"],
            "SM (MHz)": data["sm_clock_hz"] / 1e6,
        }
    ).dropna(axis=1, how="all")
    of_limit = f" Limit: {number(limit)} W." if limit else ""
    return Table(
        frame.astype(object).where(frame.notna(), None),
        f"{power_kind(results)}, mean over the timed part with its 95 % interval.{of_limit} mJ/image: "
        f"all energy, and what is above a process that holds the device and does nothing. Energy by "
        f"{listing(energy_methods(results))}. {sensor_sentence(results.profile)} "
        f"{conditions(results, [t for t in trials if t.workload == 'train'])}.",
    )


def _boards(results: Results) -> str:
    return "board's" if results.boards_used == 1 else f"{results.boards_used} boards'"


def _between(low: float | None, high: float | None) -> str | None:
    return None if low is None or pd.isna(low) else f"{number(low)} to {number(high)}"


def _with_range(interval: Interval | None, scale: float = 1.0) -> str | None:
    """`397 [391, 404]`."""
    if interval is None:
        return None
    point = number(interval.point * scale, 4)
    if interval.low is None or interval.high is None:
        return point
    return f"{point} [{number(interval.low * scale)}, {number(interval.high * scale)}]"


def sensor_sentence(profile: Profile) -> str:
    """The sensor's systematic error, which no interval over passes holds."""
    error = profile.sensor_error.get("power_w")
    if error is None:
        return (
            "The sensor's systematic error is not known: its vendor states none for this generation, and it is not in "
            "the intervals."
        )
    return f"The sensor may be off by {percent(error.value)} throughout ({error.source}); that is not in the intervals."


def headline(results: Results, trials: list[Trial]) -> Text:
    """The answer first: who draws most and least, how far from the limit, and what an image costs."""
    training = [trial for trial in trials if trial.workload == "train"]
    drawing = [(trial, mean) for trial in training if (mean := mean_interval(results, trial, "power_w"))]
    known = [(trial, mean) for trial, mean in drawing if is_plain(trial)] or drawing
    if not known:
        if not results:
            return Text(f"Nothing was measured on {results.profile.title} yet.")
        busy = [found for trial in training if (found := spread(results, trial, "cpu_utilisation"))]
        said = f"Power can't be read on this machine: {why_not(results, 'energy_j')}."
        if busy and results.profile.device.kind == "cpu":
            ends = [percent(min(one.mean for one in busy)), percent(max(one.mean for one in busy))]
            between = " to ".join(dict.fromkeys(ends))
            said += f" What can be said: while training, all cores together were busy {between} of the time."
        return Text(said)
    most, least = max(known, key=lambda pair: pair[1].point), min(known, key=lambda pair: pair[1].point)
    limit = results.power_limit_w
    in_loop = len(known) < len(drawing)  # a tuned one may draw more
    said = f"{'In the plain loop training' if in_loop else 'Training'} {_named(most[0])} draws most, "
    said += with_interval(most[1], "power_w")
    said += f", which is {percent(most[1].point / limit)} of the {_boards(results)} {number(limit)} W" if limit else ""
    said += f"; {_named(least[0])} least, {with_interval(least[1], 'power_w')}." if least[0] != most[0] else "."
    tuned = power_engines.sentence(results, training)
    said += f" {tuned}" if tuned else ""
    said += "\n\n"
    idle = [watts for number_ in results.passes() if (watts := idle_power(results, number_))]
    alone = next((found for trial in training if (found := spread(results, trial, "power_w", "unattached"))), None)
    if idle:
        said += f"Idle, with a process attached, it draws {number(float(np.mean(idle)))} W"
        said += f", and {number(alone.mean)} W when no process of ours holds it. " if alone else ". "
    energies = [(trial, e) for trial, _ in known if (e := mean_interval(results, trial, "energy_per_image_j"))]
    if energies:
        cheap, dear = min(energies, key=lambda pair: pair[1].point), max(energies, key=lambda pair: pair[1].point)
        said += f"An image costs {with_interval(cheap[1], 'energy_per_image_j')} with {_named(cheap[0])}"
        said += f" and {with_interval(dear[1], 'energy_per_image_j')} with {_named(dear[0])}" if dear != cheap else ""
        said += " in the plain loop." if in_loop else "."
    return Text(said.strip())


def _named(trial: Trial) -> str:
    """A training by its network, and by its engine where that is not the papers' loop."""
    return title(trial) if is_plain(trial) else f"{title(trial)} ({engine_name(trial)}, {trial.precision.upper()})"
