"""Pictures of how good the numbers are: steadiness over the run, the loss trained, where the time went."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import listing, percent
from labkit.analysis.speed import NOTHING, conditions, name_of
from labkit.analysis.table import Text
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import coefficient_of_variation
from labkit.trial import Trial

PANELS_IN_A_ROW = 4
DASHES = ("-", "--", ":", "-.")
LEARNED = 0.99  # of the loss of guessing: noise of block means stays within a percent of it
MEASURING = ("first step", "warm-up", "timed")
# The parts of a pass in their order: the phases of a record that make each, its colour in the palette, its hatching.
PARTS: dict[str, tuple[tuple[str, ...], int | str, str]] = {
    "start": ((), "faint", ""),  # of a process, not of a record
    "pauses": (("idle",), 2, ""),
    "build": (("build",), 3, ""),
    "prepare": (("weights", "reference", "convert", "calibrate", "trace", "compile", "capture"), 6, ""),
    "first step": (("first_step",), 4, ""),
    "warm-up": (("warmup",), 5, ""),
    "timed": (("timed", "queries"), 0, ""),
    "untimed steps": (("steps_before",), 0, "////"),
    "profiler": (("traced_steps", "nsight"), 3, "////"),
    "validate": (("validation", "scoring"), 1, ""),
    "other": ((), "ink", ""),
}
SELDOM = ("prepare", "untimed steps", "profiler", "validate")  # of tuned, traced and scored trials and training runs
LEGEND_COLUMNS = 8


def steadiness(results: Results, trials: list[Trial]) -> Figure | Text:
    """Images/s of every timed block relative to its pass's mean, over the seconds since timing began."""
    if not trials:
        return NOTHING
    data = _blocks(results, trials)
    if not len(data):
        return NOTHING
    columns = min(len(trials), PANELS_IN_A_ROW)
    rows = -(-len(trials) // columns)

    def draw(figure: Any, theme: Theme) -> None:
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
        for axes in grid[len(trials) :]:
            axes.set_axis_off()
        for axes, trial in zip(grid, trials, strict=False):
            part = data[data["trial"] == name_of(trial, trials)]
            for number_, one in part.groupby("pass"):
                axes.plot(
                    one["seconds"],
                    one["relative"],
                    lw=0.9,
                    marker=".",
                    ms=4,
                    color=theme.palette[(number_ - 1) % len(theme.palette)],
                )
            axes.axhline(1, color=theme.faint, linewidth=0.8)
            axes.set_title(name_of(trial, trials), fontsize=8.5, color=theme.ink)
            axes.set_xlabel("s")
            axes.spines[["top", "right"]].set_visible(False)
        figure.supylabel("images/s over the pass's mean", fontsize=9, color=theme.ink)

    spread = [
        variation
        for _, one in data.groupby(["trial", "pass"])
        if (variation := coefficient_of_variation(list(one["relative"]))) is not None
    ]
    said = f"The coefficient of variation within a pass is {percent(max(spread))} at most." if spread else ""
    return Figure(
        name="steadiness",
        draw=draw,
        again=results.again,
        caption=f"Every timed block, relative to its pass's mean; a line a pass. {said} {conditions(results, trials)}.",
        alt=f"Line plots of block throughput over time, one panel a configuration, one line a pass. {said}",
        data=data,
        size_in=(8.0, 0.6 + 1.7 * rows),
    )


def loss_curve(results: Results, trials: list[Trial]) -> Figure | Text:
    """Training loss against the images seen, warm-up and timed blocks of the first pass."""
    if not trials:
        return NOTHING
    rows = []
    for trial in trials:
        for record in results.ok(trial)[:1]:
            blocks = record.blocks
            if blocks is None:  # a training run
                continue
            steps = [*blocks.warmup_steps, *[blocks.steps_per_block] * len(blocks.host_s)]
            seen = np.cumsum(steps) * trial.batch
            for images, loss in zip(seen, [*blocks.warmup_loss, *blocks.loss], strict=True):
                rows.append({"trial": name_of(trial, trials), "images seen": int(images), "loss": loss})
    data = pd.DataFrame(rows, columns=["trial", "images seen", "loss"])
    classes = max(trial.classes for trial in trials)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        models, batches = (list(dict.fromkeys(getattr(trial, name) for trial in trials)) for name in ("model", "batch"))
        for trial in trials:  # a colour a model, a dash pattern a batch size
            one = data[data["trial"] == name_of(trial, trials)]
            axes.plot(
                one["images seen"],
                one["loss"].astype(float),
                lw=1.2,
                color=theme.palette[models.index(trial.model) % len(theme.palette)],
                ls=DASHES[batches.index(trial.batch) % len(DASHES)],
                label=name_of(trial, trials),
            )
        axes.axhline(np.log(classes), color=theme.faint, ls="--", lw=1, label=f"guessing among {classes} classes")
        axes.set_xlabel("images seen")
        axes.set_ylabel("cross-entropy loss")
        axes.legend(fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)

    return Figure(
        name="loss",
        draw=draw,
        again=results.again,
        caption=f"Loss of the training that was timed (block means, first pass). {_learning(data, classes)} "
        f"{conditions(results, trials)}.",
        alt="Line plot of training loss against images seen for each configuration, with the loss of guessing dashed.",
        data=data,
    )


def _learning(data: pd.DataFrame, classes: int) -> str:
    """Which losses ended below that of guessing, and which did not in the images they saw."""
    guessing = float(np.log(classes))
    by_trial = data.groupby("trial", sort=False)
    ended: dict[str, float] = {str(name): one["loss"].dropna().tail(3).mean() for name, one in by_trial}
    below = [name for name, loss in ended.items() if loss < LEARNED * guessing]
    others = [name for name in ended if name not in below]
    said = f"Below that of guessing at the end: {listing(below)}." if below else ""
    if others:
        said += (
            f" Not below it in so few images: {listing(others)}; their steps are timed all the same: what they cost "
            f"does not depend on the loss."
        )
    return said.strip()


def pass_time(results: Results) -> Figure | Text:
    """Where the time of each pass went: start of the process, pauses, building, first step, warm-up, timed blocks."""
    if not results:
        return NOTHING
    data = pass_parts(results)
    shown = [part for part in PARTS if f"{part} (s)" in data]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        left = np.zeros(len(data))
        labels = [f"pass {number_}" for number_ in data["pass"]]
        for part in shown:
            _, key, hatch = PARTS[part]
            colour = theme.palette[key] if isinstance(key, int) else getattr(theme, key)
            drawn = {"facecolor": "none", "edgecolor": colour, "hatch": hatch} if hatch else {"color": colour}
            axes.barh(labels, data[f"{part} (s)"], left=left, label=part, height=0.6, **drawn)
            left = left + data[f"{part} (s)"].to_numpy()
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        columns = len(shown) if len(shown) <= LEGEND_COLUMNS else -(-len(shown) // 2)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=8, columnspacing=1.2)
        axes.spines[["top", "right"]].set_visible(False)

    shares = [percent(share) for share in data["share measuring"]] or ["–"]
    return Figure(
        name="pass-time",
        draw=draw,
        again=results.again,
        caption=f"Time of each pass. Warm-up and timed blocks are {', '.join(shares)} of it (the first step, which "
        f"the correctness gate checks, counts as warm-up). In the pauses telemetry sees the device without work."
        f"{_untimed(shown)} {results.describe()}.",
        alt="Stacked bars, one a pass, of the seconds spent starting, in pauses, building, in the first step, in "
        "warm-up and timed blocks, and the rest.",
        data=data,
        size_in=(8.0, 1.1 + 0.42 * max(len(data), 1)),
    )


def _untimed(parts: list[str]) -> str:
    """What the hatched parts are, where a page has them."""
    said = {
        "untimed steps": "untimed steps lead to the one from which a trace or a sample is taken",
        "profiler": "the profiler's are the traced steps, the analysis of their traces and Nsight Compute's counting",
    }
    named = [what for part, what in said.items() if part in parts]
    return f" Hatched: {'; '.join(named)}." if named else ""


def pass_parts(results: Results) -> pd.DataFrame:
    """Seconds of each pass by part, and the share of it in which something is measured."""
    rows = []
    for number_ in results.passes():
        records = [record for record in results.records if record.pass_number == number_]
        starts = {record.process.id: record.process.startup_s for record in records}
        seconds = dict.fromkeys(PARTS, 0.0)
        seconds["start"] = sum(starts.values())
        for record in records:
            for part, value in _parts(record).items():
                seconds[part] += value
        total = sum(seconds.values())
        share = sum(seconds[part] for part in MEASURING) / total if total else None
        rows.append(
            {
                "pass": number_,
                **{f"{part} (s)": seconds[part] for part in PARTS},
                "total (s)": total,
                "share measuring": share,
            }
        )
    columns = ["pass", *(f"{part} (s)" for part in PARTS), "total (s)", "share measuring"]
    data = pd.DataFrame(rows, columns=columns)
    seldom = [f"{part} (s)" for part in SELDOM]
    return data.drop(columns=[name for name in seldom if not data[name].any()])


def _parts(record: Record) -> dict[str, float]:
    named = {
        part: sum(record.phases_s.get(name, 0.0) for name in phases) for part, (phases, *_) in PARTS.items() if phases
    }
    return {**named, "other": max(record.wall_s - sum(named.values()), 0.0)}


def _blocks(results: Results, trials: list[Trial]) -> pd.DataFrame:
    rows = []
    for trial in trials:
        for record in results.ok(trial):
            blocks = record.blocks
            if blocks is None:  # a training run
                continue
            times = np.array(blocks.host_s)
            relative = times.mean() / times
            for seconds, value in zip(np.cumsum(times), relative, strict=True):
                rows.append(
                    {
                        "trial": name_of(trial, trials),
                        "pass": record.pass_number,
                        "seconds": float(seconds),
                        "relative": float(value),
                    }
                )
    return pd.DataFrame(rows, columns=["trial", "pass", "seconds", "relative"])
