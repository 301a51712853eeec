"""Pictures of power and energy: by trial, over time, per image, against the size of the model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.engines import conditions
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.observations import mean_interval, mean_ratio, power_kind, spread
from labkit.analysis.speed import name_of, title
from labkit.analysis.studies.power import power_table, sensor_sentence
from labkit.analysis.table import Text
from labkit.models import count
from labkit.recipes import is_plain
from labkit.records import short_hash
from labkit.results.from_telemetry import energy_methods, why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.sensors import GPU, HOST, KINDS
from labkit.trial import Trial

LINES = {(False, False): "-", (True, False): "--", (False, True): ":", (True, True): "-."}  # tuned, colour used again
SHOWN_BEFORE_S = 15  # of a picture over time: compiling may take a minute


def ranges(results: Results, trials: list[Trial]) -> Figure | Text:
    """Idle, lowest, mean and highest power of each trial, beside the board's limit."""
    data = power_table(results, trials) if trials else pd.DataFrame()
    if not len(data) or data["power_w"].isna().all():
        return Text(f"Power can't be read here, so there is no picture of it: {why_not(results, 'energy_j')}.")
    limit = results.power_limit_w
    alone = next((found for trial in trials if (found := spread(results, trial, "power_w", "unattached"))), None)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for place, row in enumerate(data.itertuples()):
            if row.power_w is None or pd.isna(row.power_w):
                continue
            axes.plot([row.power_min, row.power_max], [place, place], color=theme.palette[0], lw=7, alpha=0.35)
            axes.plot(row.power_w, place, MARKERS[0], color=theme.palette[0], ms=8)
            axes.annotate(
                f"{number(row.power_w)} W",
                (row.power_w, place),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                color=theme.ink,
                size=8.5,
            )
        if limit:
            axes.axvline(limit, color=theme.palette[1], lw=1.5, label=f"limit, {number(limit)} W")
        if alone:
            axes.axvline(alone.mean, color=theme.palette[2], ls="--", lw=1.2, label="no process attached")
        axes.plot([], [], MARKERS[0], color=theme.palette[0], ls="none", label="mean; bar: lowest to highest reading")
        axes.set_yticks(range(len(data)), list(data["trial"]))
        axes.set_ylim(len(data) - 0.5, -0.7)
        axes.set_xlim(0, None)
        axes.set_xlabel("power (W)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=3, fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)

    return Figure(
        name="power",
        draw=draw,
        again=results.again,
        caption=f"{power_kind(results)}, of each trial over the timed part, all passes. "
        f"{sensor_sentence(results.profile)} "
        f"{conditions(results, [t for t in trials if t.workload == 'train'])}.",
        alt="Range plot of board power: for each trial a bar from the lowest to the highest reading and a dot at the "
        "mean, with the board's limit as a line.",
        data=data[["trial", "power_min", "power_w", "power_low", "power_high", "power_max", "n"]],
        size_in=(8.0, 1.3 + 0.42 * len(data)),
    )


def over_time(results: Results, trials: list[Trial], series: pd.DataFrame) -> Figure | Text:
    """Power (on a machine without, the share of busy processor time) from before the warm-up to after the end."""
    metric, source, unit, scale = "power_w", GPU, "board power (W)", 1.0
    if not len(series) or not (series["metric"] == metric).any():
        metric, source, unit, scale = "cpu_utilisation", HOST, "CPU busy, all cores (%)", 100.0
    of_metric = series[(series["metric"] == metric) & series["source"].astype(str).str.startswith(source)]
    if not len(of_metric):
        reason = series.attrs.get("reason", "no series of this study is kept here")
        return Text(f"There is no picture over time: {reason}.")
    parts = [_first_pass(of_metric, trial).assign(trial=name_of(trial, trials)) for trial in trials]
    data = pd.concat(parts)[["trial", "pass", "source", "t_s", "value"]]
    passes = listing([str(number_) for number_ in sorted(data["pass"].unique())])
    limit = results.profile.device.board_power_w if metric == "power_w" else None
    longer = data["t_s"].min() < -SHOWN_BEFORE_S
    cut = f" What compiling or a slow start took more than {SHOWN_BEFORE_S} s before is not drawn." if longer else ""

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        subjects = list(dict.fromkeys(_subject(trial) for trial in trials))
        for trial in trials:
            for _, one in data[data["trial"] == name_of(trial, trials)].groupby("source", observed=True):
                axes.plot(
                    one["t_s"],
                    one["value"] * scale,
                    color=theme.palette[subjects.index(_subject(trial)) % len(theme.palette)],
                    lw=1.2,
                    ls=LINES[not is_plain(trial), subjects.index(_subject(trial)) >= len(theme.palette)],
                    drawstyle="steps-pre" if KINDS[metric] == "average" else "steps-post",
                    label=name_of(trial, trials),
                )
        axes.axvline(0, color=theme.faint, lw=1)
        if limit:
            axes.axhline(limit.value, color=theme.ink, lw=1, ls=":", label="board limit")
        axes.set_ylim(0, None)
        axes.set_xlim(max(data["t_s"].min(), -SHOWN_BEFORE_S), None)
        axes.set_xlabel("seconds from the first timed block")
        axes.set_ylabel(unit)
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        axes.legend(once.values(), once.keys(), loc="upper center", bbox_to_anchor=(0.5, 1.24), ncols=3, fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)

    return Figure(
        name="over-time",
        draw=draw,
        again=results.again,
        caption=f"{unit[:1].upper() + unit[1:]} over time, pass {passes}, each reading as the sensor gave it: a pause, "
        f"building and the first step, warm-up, timed blocks from 0 on, a pause.{cut} {results.describe()}.",
        alt=f"Line plot of {unit} against seconds for each trial, with the start of the timed part marked.",
        data=data,
        size_in=(8.0, 3.9),
    )


def _subject(trial: Trial) -> tuple[str, str, int]:
    """What has a colour of its own; its engines share that."""
    return trial.workload, trial.model, trial.batch


def _first_pass(series: pd.DataFrame, trial: Trial) -> pd.DataFrame:
    """The series of the first pass in which the trial has any."""
    own = series[series["key"] == short_hash(trial.key)]
    return own[own["pass"] == own["pass"].min()]


def energy(results: Results, trials: list[Trial]) -> Figure | Text:
    """Joules per image, all of them and those above idle, beside images/s per watt."""
    data = power_table(results, trials) if trials else pd.DataFrame()
    if not len(data) or data["gross_j"].isna().all():
        return Text(f"Energy can't be read here, so no image has a price: {why_not(results, 'energy_j')}.")

    def draw(figure: Any, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        places = np.arange(len(data))
        for kind, offset, colour, said in (
            ("gross", -0.14, theme.palette[0], "all energy"),
            ("net", 0.14, theme.palette[1], "above idle"),
        ):
            values = data[f"{kind}_j"].astype(float) * 1e3
            below = values - data[f"{kind}_low"].astype(float) * 1e3
            above = data[f"{kind}_high"].astype(float) * 1e3 - values
            left.errorbar(
                values,
                places + offset,
                xerr=[below.fillna(0), above.fillna(0)],
                fmt=MARKERS[0] if kind == "gross" else MARKERS[1],
                color=colour,
                capsize=4,
                label=said,
            )
        left.set_xlim(0, None)
        left.set_xlabel("mJ per image")
        left.set_yticks(places, list(data["trial"]))
        left.set_ylim(len(data) - 0.5, -0.5)
        left.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2, fontsize=8.5)
        right.plot(data["images_per_s_per_w"].astype(float), places, MARKERS[2], color=theme.palette[2], ms=8)
        right.set_xlim(0, None)
        right.set_xlabel("images/s per W")
        for axes in (left, right):
            axes.grid(axis="x", color=theme.faint, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)

    return Figure(
        name="energy",
        draw=draw,
        again=results.again,
        caption=f"Energy per image with 95 % interval over passes, and efficiency. Energy by "
        f"{listing(energy_methods(results))}, over windows of 5 s and more. {sensor_sentence(results.profile)} "
        f"{conditions(results, trials)}.",
        alt="Left: dot plot of millijoules per image for each model, all energy and energy above idle. Right: images "
        "per second and watt.",
        data=data[
            ["trial", "gross_j", "gross_low", "gross_high", "net_j", "net_low", "net_high", "images_per_s_per_w"]
        ],
        size_in=(8.0, 1.5 + 0.45 * len(data)),
    )


def against_size(results: Results, trials: list[Trial]) -> Figure | Text:
    """Mean power of the plain loop against the size of the model: its parameters, and its arithmetic per image."""
    loop = [trial for trial in trials if is_plain(trial)]
    known = [(trial, mean) for trial in loop if (mean := mean_interval(results, trial, "power_w"))]
    if not known and any(mean_interval(results, trial, "power_w") for trial in trials):
        return Text("Power against size is of the plain loop, which has no result here.")
    if not known:
        return Text(f"Power against size needs power: {why_not(results, 'energy_j')}.")
    data = pd.DataFrame(
        [
            {
                "trial": name_of(trial),
                "model": title(trial),
                "batch": trial.batch,
                "parameters": count(trial.model, image_px=trial.image_px).parameters,
                "GFLOP/image": count(trial.model, image_px=trial.image_px).flop_training / 1e9,
                "power_w": mean.point,
                "low": mean.point if mean.low is None else mean.low,
                "high": mean.point if mean.high is None else mean.high,
                "n": mean.n,
            }
            for trial, mean in known
        ]
    )

    def draw(figure: Any, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, column, scale, label in (
            (left, "parameters", 1e-6, "million parameters"),
            (right, "GFLOP/image", 1.0, "GFLOP per image"),
        ):
            for index, row in data.iterrows():
                place = int(str(index))
                axes.errorbar(
                    row[column] * scale,
                    row["power_w"],
                    yerr=[[row["power_w"] - row["low"]], [row["high"] - row["power_w"]]],
                    fmt=MARKERS[place % len(MARKERS)],
                    color=theme.palette[place % len(theme.palette)],
                    ms=8,
                    capsize=4,
                    label=row["trial"],
                )
            axes.set_xlabel(label)
            axes.set_xlim(0, None)
            axes.spines[["top", "right"]].set_visible(False)
        left.set_ylim(0, 1.08 * data["high"].max())
        left.set_ylabel("mean power (W)")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8.5)

    return Figure(
        name="power-size",
        draw=draw,
        again=results.again,
        caption=f"{power_kind(results)}, against the size of the model, 95 % interval over passes."
        f"{_order(results, [trial for trial, _ in known])} "
        f"{conditions(results, loop)}.",
        alt="Two scatter plots of mean power: against the number of parameters and against the arithmetic per image.",
        data=data,
        size_in=(8.0, 3.6),
    )


def _order(results: Results, known: list[Trial]) -> str:
    """From each model to the next larger one, at the largest batch: the ratio of power within each pass."""
    largest = [trial for trial in known if trial.batch == max(one.batch for one in known)]
    said: dict[str, list[str]] = {}
    for name, size in (("parameters", "parameters"), ("GFLOP/image", "flop_training")):
        ordered = sorted(largest, key=lambda trial: getattr(count(trial.model, image_px=trial.image_px), size))
        steps = [step for a, b in pairwise(ordered) if (step := _step(results, a, b))]
        if steps:
            said.setdefault(listing(steps), []).append(name)
    return "".join(f" Ordered by {listing(columns)}, {steps}." for steps, columns in said.items())


def _step(results: Results, smaller: Trial, larger: Trial) -> str | None:
    """Whether power rises from one model to another; None without a pass that holds both."""
    ratio = mean_ratio(results, larger, smaller, "power_w")
    if ratio is None:
        return None
    between = f"from {title(smaller)} to {title(larger)} it"
    if ratio.low is None or ratio.high is None:
        return f"{between} changes by {number(ratio.point)}x (one pass, no interval, so no direction is said)"
    what = "rises" if ratio.low > 1 else "falls" if ratio.high < 1 else "does not change beyond the interval"
    return f"{between} {what} ({number(ratio.point, 4)}x [{number(ratio.low, 4)}, {number(ratio.high, 4)}])"
