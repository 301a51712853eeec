"""A line an engine against the batch, a panel a model: the picture that batch size and inference share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import ENGINES, legend_above, log_axis, no_result, panels, points, sizes_axis, tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.speed import NOTHING
from labkit.analysis.table import Text
from labkit.models import MODELS
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

BOUND_DASHES = {"FP32": (0, (1, 1.5)), "BF16": (0, (5, 2)), "TF32": (0, (3, 2)), "FP16": (0, (6, 3))}


def bounds(results: Results, trials: Sequence[Trial]) -> list[float | None]:
    """Images/s that the nominal peaks allow each trial at most; None where no peak is stated."""
    found = []
    for trial in trials:
        peaks = roofline.nominal_of(results.profile, trial)
        known = trial.model in MODELS and peaks.flop_per_s
        limit = roofline.bound(roofline.planned_work(trial), peaks) if known else None
        found.append(limit.images_per_s if limit else None)
    return found


def peak(data: pd.DataFrame) -> str:
    """The largest value, in words."""
    known = data.dropna(subset=["value"])
    if not len(known):
        return "No trial has a result."
    best = known.loc[known["value"].astype(float).idxmax()]
    return f"The most: {best['trial']}, {number(best['value'])} images/s."


def against_batch(
    results: Results,
    trials: Sequence[Trial],
    data: pd.DataFrame,
    *,
    name: str,
    label: str,
    caption: str,
    alt: str,
    log: bool = True,
    lost_at: float = 0.04,
) -> Figure:
    """`data` as `engines.values` gives it, with a column `bound`; the label says what the values are."""
    models = list(dict.fromkeys(data["model"]))
    columns = 2

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(models), columns, sharex=True, sharey=True)
        for axes, model in zip(grid, models, strict=True):
            of_model = data[data["model"] == model]
            for engine, one in of_model.groupby("engine", sort=False):
                place, marker, line = ENGINES[str(engine)]
                colour, part = theme.palette[place], one.sort_values("batch")
                points(axes, list(part["batch"]), part, colour=colour, marker=marker, line=line, label=_engine(part))
                no_result(axes, list(part["batch"][part["failed"].notna()]), colour, lost_at)
            _draw_bounds(axes, of_model, theme)
            if not log:
                axes.axhline(1, color=theme.ink, lw=1)
                axes.set_ylim(0, None)
            sizes_axis(axes, list(data["batch"]), "batch")
            axes.set_title(model, fontsize=9.5, color=theme.ink)
            axes.label_outer()
            tidy(axes, theme, grid="y")
        if log:
            for axes in grid:  # once all is drawn: they share the scale
                log_axis(axes, "y")
        figure.supylabel(label, fontsize=9, color=theme.ink)
        legend_above(figure, grid)

    lost = engines.failures_sentence(results, trials)
    return Figure(
        name=name,
        draw=draw,
        again=results.again,
        caption=f"{caption.strip()}{lost} {engines.conditions(results, list(trials))}. Bars: 95 % interval.",
        alt=alt,
        data=data.drop(columns=[column for column in ("bound", "failed") if data[column].isna().all()]),
        size_in=(8.0, 1.2 + 2.3 * -(-len(models) // columns)),
    )


def _draw_bounds(axes: Any, of_model: pd.DataFrame, theme: Theme) -> None:
    for precision, one in of_model.groupby("precision", sort=False):
        known = one.dropna(subset=["bound"]).groupby("batch")["bound"].max()
        if len(known):
            style = {"color": theme.ink, "alpha": 0.45, "lw": 1.1, "ls": BOUND_DASHES.get(str(precision), ":")}
            axes.plot(known.index, known.astype(float), label=f"bound, {precision}", **style)


def _engine(one: pd.DataFrame) -> str:
    return f"{one['engine'].iloc[0]}, {listing(list(dict.fromkeys(one['precision'])))}"


def throughput(
    results: Results, trials: Sequence[Trial], *, name: str, what: str, does: str, note: str = ""
) -> Figure | Text:
    """Images/s against the batch, beside what the nominal peaks of each precision allow.

    `what` begins the caption ("Training throughput"), `does` is what happens to the images, for the alt text.
    """
    if not trials:
        return NOTHING
    data = engines.values(results, trials, "images_per_s").assign(bound=bounds(results, trials))
    bounded = data["bound"].notna().any()
    beside = "Faint lines: the roofline of the nominal peaks." if bounded else "No nominal peaks, so no bound."
    return against_batch(
        results,
        trials,
        data,
        name=name,
        label="images/s (log scale)",
        caption=f"{what}. {beside} {note}",
        alt=f"Log-log line plots of {does} per second against the batch size, one panel a model, a line an engine. "
        f"{peak(data)}",
    )
