"""Pictures of inference: throughput against the batch, and the latencies of single queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import ENGINES, log_axis, tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import number
from labkit.analysis.speed import name_of
from labkit.analysis.studies import against_batch
from labkit.analysis.studies.inference import PERCENTILE_NAMES, percentile
from labkit.analysis.table import Text
from labkit.recipes import engine_name
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

MARKS = {"p50": "o", "p90": "d", "p99": "s", "p99.9": "|"}


def throughput(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s against the batch, a panel a model, beside what the nominal peaks of each precision allow."""
    return against_batch.throughput(
        results,
        trials,
        name="inference-throughput",
        what="Inference throughput against the batch, copies excluded",
        does="predicted images",
    )


def latencies(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """A row a trial that answered single images: its percentiles along a log axis."""
    asked = [t for t in trials if t.batch == 1 and percentile(results, t, "latency_s")]
    if not asked:
        return Text("No trial answered single images, so there is no picture of their latency.")
    rows = []
    for trial in asked:
        for metric, name in PERCENTILE_NAMES.items():
            found = percentile(results, trial, metric)
            if found:
                value, low, high = (None if x is None else x * 1e3 for x in (found.point, found.low, found.high))
                row = {"trial": name_of(trial, asked), "engine": engine_name(trial), "percentile": name}
                rows.append({**row, "latency (ms)": value, "low": low, "high": high, "n": found.n})
    data = pd.DataFrame(rows)
    names = [name_of(trial, asked) for trial in asked]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            one = data[data["trial"] == name]
            colour = theme.palette[ENGINES[str(one["engine"].iloc[0])][0]]
            axes.plot([one["latency (ms)"].min(), one["latency (ms)"].max()], [place, place], color=colour, lw=1.5)
            for _, row in one.iterrows():
                axes.plot(row["latency (ms)"], place, MARKS[row["percentile"]], color=colour, ms=8, mew=2)
        for name in data["percentile"].unique():
            axes.plot([], [], MARKS[name], ls="none", color=theme.ink, ms=7, mew=2, label=name)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("latency of one image, ms (log scale)")
        log_axis(axes, "x")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=4, fontsize=8.5)
        tidy(axes, theme, grid="x")

    medians = data[data["percentile"] == "p50"]
    low, high = medians["latency (ms)"].min(), medians["latency (ms)"].max()
    return Figure(
        name="latency",
        draw=draw,
        again=results.again,
        caption=f"Latency of single images, one after the other: percentiles of every query of a pass, means over "
        f"passes. {engines.conditions(results, asked)}.",
        alt=f"Dot plot on a log axis: for each model and engine the median and the tail percentiles of the latency; "
        f"medians from {number(low)} to {number(high)} ms.",
        data=data,
        size_in=(8.0, 1.2 + 0.32 * len(names)),
    )
