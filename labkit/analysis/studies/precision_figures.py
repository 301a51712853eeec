"""Pictures of precision: throughput by precision and engine, and the ratio over FP32 beside what was published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines, utilisation
from labkit.analysis.draw import ENGINES, legend_above, no_result, panels, points, thousands, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.speed import NOTHING
from labkit.analysis.studies import by_precision, precision
from labkit.analysis.table import Text
from labkit.papers import Paper
from labkit.profile import load_profile
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import PRECISIONS, Trial

COLUMNS = 3
GROUP = ["model", "image_px", "batch"]
COLOURS = {name.upper(): place for place, name in enumerate(PRECISIONS)}


def throughput(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s by precision, eager and tuned side by side, a panel a model, input and batch."""
    if not trials:
        return NOTHING
    data = engines.values(results, engines.in_order(trials), "images_per_s")
    groups = list(data.groupby(GROUP, sort=False))
    names = [name.upper() for name in PRECISIONS if name.upper() in set(data["precision"])]
    kinds = list(dict.fromkeys(data["engine"]))

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(groups), COLUMNS)
        for axes, (about, of_group) in zip(grid, groups, strict=True):
            for index, engine in enumerate(kinds):
                one = of_group[of_group["engine"] == engine]
                offset = (index - (len(kinds) - 1) / 2) * 0.22
                places = [names.index(name) + offset for name in one["precision"]]
                place, marker, _ = ENGINES[engine]
                points(axes, places, one, colour=theme.palette[place], marker=marker, label=engine)
                lost = [at for at, failed in zip(places, one["failed"].notna(), strict=True) if failed]
                no_result(axes, lost, theme.palette[place])
            axes.set_title(_panel(about), fontsize=9, color=theme.ink)
            axes.set_xticks(range(len(names)), names)
            axes.set_xlim(-0.6, len(names) - 0.4)
            axes.set_ylim(0, None)
            if of_group["value"].isna().all():
                axes.set_yticks([])
            else:
                thousands(axes, "y")
            tidy(axes, theme, grid="y")
        figure.supylabel("images/s", fontsize=9, color=theme.ink)
        legend_above(figure, grid)

    known = data.dropna(subset=["value"])
    best = known.loc[known["value"].astype(float).idxmax()] if len(known) else None
    said = (
        f"The most: {best['trial']}, {number(best['value'])} images/s."
        if best is not None
        else "No trial has a result."
    )
    return Figure(
        name="precision-throughput",
        draw=draw,
        again=results.again,
        caption=f"Training throughput by precision, a mark an engine; bars: 95 % interval."
        f"{engines.failures_sentence(results, trials)} {engines.conditions(results, list(trials))}.",
        alt=f"Dot plots of images per second for {listing(names)}, one panel a model and input size, a mark an engine "
        f"({listing(kinds)}). {said}",
        data=data.drop(columns=["failed"]) if data["failed"].isna().all() else data,
        size_in=(8.0, 1.0 + 2.2 * -(-len(groups) // COLUMNS)),
    )


def _panel(about: Any) -> str:
    model, image_px, batch = about
    return f"{model}, {image_px} px, batch {batch:,}"


def over_fp32(results: Results, trials: Sequence[Trial], papers: Sequence[Paper]) -> Figure | Text:
    """Images/s over FP32 of the same engine, beside the published ratios."""
    data = precision.ratios(results, engines.in_order(trials))
    known = data.dropna(subset=["value"])
    if not len(known):
        return Text(
            "No trial in a lower precision stands beside its FP32 one with a result, so there is no ratio to show."
        )
    groups = list(known.groupby([*GROUP, "engine"], sort=False))
    names = [name.upper() for name in PRECISIONS if name.upper() in set(known["precision"])]
    published = by_precision.published_ratios(papers, results.study.id)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        axes.axvline(1, color=theme.ink, lw=1)
        for index, name in enumerate(names):
            rows = [(at, one[one["precision"] == name]) for at, (_, one) in enumerate(groups)]
            there = [(at, one) for at, one in rows if len(one)]
            part = pd.concat([one for _, one in there])
            places = [at + (index - (len(names) - 1) / 2) * 0.22 for at, _ in there]
            colour = theme.palette[COLOURS[name] % len(theme.palette)]
            points(axes, places, part, colour=colour, marker=MARKERS[COLOURS[name]], label=name, across=True)
        for band in published:
            label = f"published: {band.over} over {band.under}"
            axes.axvspan(band.low, band.high, facecolor="none", edgecolor=theme.faint, hatch="////", label=label, lw=0)
        axes.set_yticks(range(len(groups)), [f"{_panel(about[:3])}, {about[3]}" for about, _ in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(0, None)
        axes.set_xlabel("images/s over FP32's")
        tidy(axes, theme, grid="x")
        legend_above(figure, [axes])

    said = "; ".join(f"{band.over} over {band.under} {number(band.low)}x to {number(band.high)}x" for band in published)
    where = listing(list(dict.fromkeys(band.where for band in published)))
    of = listing(list(dict.fromkeys(load_profile(name).title for band in published for name in band.hardware)))
    hatched = f" Hatched: published for {of}, {said} ({where})." if published else " No paper printed such a ratio."
    low, high = known["value"].astype(float).min(), known["value"].astype(float).max()
    return Figure(
        name="precision-ratio",
        draw=draw,
        again=results.again,
        caption=f"Images/s over FP32 of the same engine, input and batch, formed within each pass first; bars: 95 % "
        f"interval.{hatched} {engines.conditions(results, list(trials))}.",
        alt=f"Dot plot: images per second over FP32 for {listing(names)}, a row a model, input size and engine, from "
        f"{number(low)}x to {number(high)}x.",
        data=data.drop(columns=["failed"]) if data["failed"].isna().all() else data,
        size_in=(8.0, 1.3 + 0.42 * len(groups)),
    )


def activity(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Tensor cores and multiprocessors of the first model and input, by precision and engine, where telemetry tells."""
    known = [trial for trial in engines.in_order(trials) if results.ok(trial)]
    if not known:
        return NOTHING
    first = known[0]
    shown = [t for t in known if (t.model, t.image_px, t.batch) == (first.model, first.image_px, first.batch)]
    return utilisation.shares(results, shown, of=("tensor_activity", "sm_activity"))
