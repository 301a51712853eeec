"""Pictures of CPU against GPU: images/s of both sides, their ratios beside what was printed, the sweep of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, panels, points, sizes_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import number
from labkit.analysis.speed import DEVICES, NOTHING
from labkit.analysis.studies.sides import (
    SIDES,
    best_on,
    compared,
    how,
    plain_on,
    published,
    settings,
    swept,
    thread_scaling,
)
from labkit.analysis.table import Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

COLOURS = {"cpu": 1, "cuda": 0}  # places in the palette
WORDS = ("plain", "best")
ROW_IN = 0.42  # of a setting


def rates(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """A row a setting: images/s of each side, plain (round) and best (square), along a log axis."""
    data = _rates(results, trials)
    if not len(data):
        return NOTHING if not trials else Text("No trial gave a result, so there is no picture of images/s.")
    names = list(dict.fromkeys(data["setting"]))

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for device in SIDES:
            for word, marker, shift in (("plain", MARKERS[0], -0.12), ("best", MARKERS[1], 0.12)):
                one = data[(data["on"] == DEVICES[device]) & (data["which"] == word)]
                places = [names.index(name) + shift for name in one["setting"]]
                label = f"{DEVICES[device]}, {word}"
                colour = theme.palette[COLOURS[device]]
                points(axes, places, one, colour=colour, marker=marker, label=label, across=True)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("images/s (log scale)")
        log_axis(axes, "x")
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.0 + 0.9 / (1 + len(names))), ncols=4, fontsize=8.5)
        tidy(axes, theme, grid="x")

    most = data.loc[data["value"].astype(float).idxmax()]
    return Figure(
        name="sides",
        draw=draw,
        again=results.again,
        caption="Images/s of each side with the papers' plain loop and at its best here (the numbers name how). "
        f"{engines.conditions(results, list(trials))}. Bars: 95 % interval.",
        alt=f"Dot plot on a log axis, one row a workload, model and batch: images per second of each side, plain and "
        f"best. The most: {most['setting']} on the {most['on']}, {number(most['value'])} images/s.",
        data=data,
        size_in=(8.0, 1.3 + ROW_IN * len(names)),
    )


def _rates(results: Results, trials: Sequence[Trial]) -> pd.DataFrame:
    rows = []
    for setting in settings(trials):
        for device in SIDES:
            for word, trial in zip(
                WORDS, (plain_on(trials, setting, device), best_on(results, trials, setting, device)), strict=True
            ):
                if trial and (rate := results.interval(trial, "images_per_s")):
                    about = {"setting": setting.name, "on": DEVICES[device], "which": word, "how": how(trial)}
                    rows.append({**about, **engines.ends(rate)})
    return pd.DataFrame(rows)


def ratios(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """A row a setting: GPU over CPU, plain and best, beside the ratio that a paper prints of the same."""
    rows = [
        {"setting": row.setting.name, "which": word, **engines.ends(ratio)}
        for row in compared(results, trials)
        for word, ratio in zip(WORDS, (row.plain, row.best), strict=True)
        if ratio
    ]
    if not rows:
        return Text("There is no pair of GPU and CPU with results, so there is no picture of their ratio.")
    data = pd.DataFrame(rows)
    names = list(dict.fromkeys(data["setting"]))
    by_name = {setting.name: setting for setting in settings(trials)}
    printed = [
        (names.index(name), one) for one in published(results.study.id) for name in names if one.is_of(by_name[name])
    ]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for index, word in enumerate(WORDS):
            one = data[data["which"] == word]
            places = [names.index(name) + 0.24 * index - 0.12 for name in one["setting"]]
            points(axes, places, one, colour=theme.palette[2 * index], marker=MARKERS[index], label=word, across=True)
        for place, magnitude in printed:
            axes.plot(magnitude.value, place, "|", color=theme.ink, ms=18, mew=2, label=f"printed: {magnitude.of}")
        axes.axvline(1, color=theme.ink, lw=1)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("images/s of the GPU over the CPU's (log scale)")
        log_axis(axes, "x")
        tidy(axes, theme, grid="x")
        legend_above(figure, [axes], ncols=3)

    low, high = data["value"].astype(float).min(), data["value"].astype(float).max()
    said = " Upright marks: what a paper prints of the same model and input." if printed else ""
    return Figure(
        name="gpu-over-cpu",
        draw=draw,
        again=results.again,
        caption="Images/s of the GPU over the CPU's, formed within passes: the plain loop on both, and each side at "
        f"its best.{said} {results.describe()}. Bars: 95 % interval.",
        alt=f"Dot plot on a log axis of the ratio of GPU to CPU for each workload, model and batch, from {number(low)} "
        f"to {number(high)}.",
        data=data,
        size_in=(8.0, 1.4 + ROW_IN * len(names)),
    )


def threads(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s and parallel efficiency of the CPU against the number of threads."""
    data = thread_scaling(results, trials)
    if not len(data) or data["value"].isna().all():
        return Text("No sweep of threads was measured: it takes two numbers of threads and more.")
    lines = list(dict.fromkeys(data["what"]))
    sizes = [int(one) for one in data["threads"]]

    def draw(figure: Any, theme: Theme) -> None:
        left, right = panels(figure, 2, 2)
        for index, what in enumerate(lines):
            one = data[data["what"] == what]
            style: dict[str, Any] = {
                "colour": theme.palette[index % len(theme.palette)],
                "marker": MARKERS[index % len(MARKERS)],
            }
            points(left, list(one["threads"]), one, line="-", label=what, **style)
            share = one.assign(
                value=one["efficiency"] * 100, low=one["efficiency low"] * 100, high=one["efficiency high"] * 100
            )
            points(right, list(share["threads"]), share, line="-", **style)
        right.axhline(100, color=theme.ink, lw=1)
        ends = [data[name].astype(float).max() for name in ("efficiency", "efficiency high")]
        right.set_ylim(0, max(105.0, *(103 * end for end in ends if end == end)))
        for axes, label in ((left, "images/s (log scale)"), (right, "parallel efficiency (%)")):
            sizes_axis(axes, sizes, "threads")
            axes.set_ylabel(label)
            tidy(axes, theme, grid="y")
        log_axis(left, "y")
        legend_above(figure, [left], ncols=1)

    known = data.dropna(subset=["efficiency"])
    ends = f"{number(known['efficiency'].min() * 100)} to {number(known['efficiency'].max() * 100)} percent"
    return Figure(
        name="threads",
        draw=draw,
        again=results.again,
        caption="The CPU's images/s against its threads, and the parallel efficiency: the speed-up over the fewest "
        "threads (within passes) over that of a linear one. "
        f"{engines.conditions(results, [trial for sweep in swept(trials) for trial in sweep])}. Bars: 95 % interval.",
        alt=f"Two line plots against the number of threads: images per second, and parallel efficiency of {ends}.",
        data=data.drop(columns=[name for name in ("failed",) if data[name].isna().all()]),
        size_in=(8.0, 3.4 + 0.2 * len(lines)),
    )
