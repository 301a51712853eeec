"""Pictures of INT8: throughput by precision against the batch, its gain beside the published one, what it loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import ENGINES, legend_above, log_axis, no_result, panels, points, sizes_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.speed import NOTHING, title
from labkit.analysis.studies import accuracy, quantization
from labkit.analysis.studies.by_precision import PublishedRatio, published_words
from labkit.analysis.table import Text
from labkit.papers import Paper
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import PRECISIONS

COLUMNS = 2
GROUP = ["model", "image_px"]
COLOURS = {name.upper(): place for place, name in enumerate(PRECISIONS)}


def throughput(results: Results) -> Figure | Text:
    """Images/s against the batch: a colour a precision, a marker an engine, a panel a model and input."""
    trials = quantization.timed(results)
    if not trials:
        return NOTHING
    data = engines.values(results, trials, "images_per_s")
    lost = engines.failures_sentence(results, trials)
    return _against_batch(
        results,
        data,
        name="quantization-throughput",
        label="images/s (log scale)",
        caption=f"Inference throughput against the batch by precision and engine.{lost}",
        alt=f"Log-log line plots of predicted images per second against the batch, one panel a model and input size, a "
        f"line a precision and engine. {_most(data)}",
        log=True,
    )


def gain(results: Results, published: Sequence[PublishedRatio]) -> Figure | Text:
    """Images/s over the fastest FP32's against the batch, beside what was published."""
    pairs = quantization.over_fastest_fp32(results, quantization.timed(results))
    data = engines.ratios(results, pairs, "images_per_s")
    if data["value"].isna().all():
        return Text("No trial in a lower precision stands beside an FP32 one with a result: there is no gain to show.")
    lines = {f"published, {one.over} over {one.under}, {listing(one.hardware)}": one.low for one in published}
    return _against_batch(
        results,
        data,
        name="quantization-gain",
        label="images/s over the fastest FP32's",
        caption=f"Images/s over those of the fastest FP32 engine at the same size, formed within each pass first. "
        f"{published_words(published)}",
        alt=f"Line plots of the ratio of images per second over FP32 against the batch, a line a precision and engine, "
        f"with the published ratio as a dashed line. {_most(data, unit='x')}",
        log=False,
        lines=lines,
    )


def _against_batch(
    results: Results,
    data: pd.DataFrame,
    *,
    name: str,
    label: str,
    caption: str,
    alt: str,
    log: bool,
    lines: dict[str, float] | None = None,
) -> Figure:
    groups = list(data.groupby(GROUP, sort=False))

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(groups), COLUMNS)
        for axes, (about, of_group) in zip(grid, groups, strict=True):
            for (precision, engine), one in of_group.groupby(["precision", "engine"], sort=False):
                _, marker, line = ENGINES[str(engine)]
                colour, part = theme.palette[COLOURS[str(precision)]], one.sort_values("batch")
                what = f"{precision}, {engine}"
                points(axes, list(part["batch"]), part, colour=colour, marker=marker, line=line, label=what)
                no_result(axes, list(part["batch"][part["failed"].notna()]), colour)
            for printed, value in (lines or {}).items():
                axes.axhline(value, color=theme.ink, lw=1.2, ls=(0, (4, 2)), label=printed)
            if not log:
                axes.axhline(1, color=theme.ink, lw=1)
                axes.set_ylim(0, None)
            sizes_axis(axes, list(of_group["batch"]), "batch")
            axes.set_title(f"{about[0]}, {about[1]} px", fontsize=9.5, color=theme.ink)
            tidy(axes, theme, grid="y")
            if log and of_group["value"].notna().any():
                log_axis(axes, "y")
        figure.supylabel(label, fontsize=9, color=theme.ink)
        legend_above(figure, grid, ncols=3)

    return Figure(
        name=name,
        draw=draw,
        again=results.again,
        caption=f"{caption.strip()} {engines.conditions(results, quantization.timed(results))}. Bars: 95 % interval.",
        alt=alt,
        data=data.drop(columns=["failed"]) if data["failed"].isna().all() else data,
        size_in=(8.0, 1.5 + 2.5 * -(-len(groups) // COLUMNS)),
    )


def _most(data: pd.DataFrame, unit: str = " images/s") -> str:
    known = data.dropna(subset=["value"])
    if not len(known):
        return "No trial has a result."
    best = known.loc[known["value"].astype(float).idxmax()]
    return f"The most: {best['trial']} ({best['precision']}, {best['engine']}), {number(best['value'])}{unit}."


def accuracy_lost(results: Results, papers: Sequence[Paper]) -> Figure | Text:
    """A row a network: top-1 and top-5 that INT8 loses, with paired intervals, beside what was printed."""
    rows = []
    for metric, word in (("top1", "top-1"), ("top5", "top-5")):
        for trial, one in accuracy.losses(results, metric):
            if one.effect is None or one.effect.low is None or one.effect.high is None:
                continue
            value, low, high = (100 * end for end in (one.effect.point, one.effect.low, one.effect.high))
            printed = accuracy.printed_loss(papers, trial.model, metric)
            row = {"model": title(trial), "accuracy": word, "value": value, "low": low, "high": high}
            rows.append({**row, "images": one.effect.n, "published": None if printed is None else 100 * printed})
    if not rows:
        return Text("No network was scored both in FP32 and in INT8, so there is no picture of what INT8 loses.")
    data = pd.DataFrame(rows)
    names = list(dict.fromkeys(data["model"]))
    line = accuracy.tolerated(papers, "top1")

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for place, (word, one) in enumerate(data.groupby("accuracy", sort=False)):
            at = [names.index(name) + (place - 0.5) * 0.3 for name in one["model"]]
            colour = theme.palette[place]
            points(axes, at, one, colour=colour, marker=MARKERS[place], label=f"{word}, here", across=True)
            known = one["published"].notna().to_numpy()
            there = [y for y, is_there in zip(at, known, strict=True) if is_there]
            axes.plot(
                one["published"][known], there, "|", color=colour, ms=13, mew=2.2, label=f"{word}, published (ImageNet)"
            )
        axes.axvline(0, color=theme.ink, lw=1)
        if line is not None:
            axes.axvline(100 * line, color=theme.ink, lw=1.2, ls=(0, (4, 2)), label="the claim's bound")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel("accuracy lost by INT8, points")
        tidy(axes, theme, grid="x")
        legend_above(figure, [axes], ncols=3)

    worst = data.loc[data["value"].idxmax()]
    pairs = accuracy.int8_pairs(results)
    return Figure(
        name="quantization-accuracy",
        draw=draw,
        again=results.again,
        caption=f"Accuracy lost by INT8: FP32's minus INT8's on the same {data['images'].max():,} validation images at "
        f"the same weights; bars: paired 95 % interval over images. Bars upright: differences of the printed "
        f"accuracies. {engines.conditions(results, [trial for pair in pairs for trial in pair])}.",
        alt=f"Dot plot: for each network the points of top-1 and top-5 accuracy that INT8 loses, with intervals, "
        f"beside the published losses. The largest here: {worst['model']}, {number(worst['value'])} points of "
        f"{worst['accuracy']}.",
        data=data,
        size_in=(8.0, 1.6 + 0.5 * len(names)),
    )
