"""Pictures of the batch size: throughput and time per epoch against it, and what a tuned engine gains at each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines, roofline
from labkit.analysis.draw import ENGINES, legend_above, log_axis, no_result, panels, points, sizes_axis, tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.results import Results
from labkit.analysis.speed import NOTHING
from labkit.analysis.table import Text
from labkit.models import MODELS
from labkit.trial import Trial

BOUND_DASHES = {"FP32": (0, (1, 1.5)), "BF16": (0, (5, 2)), "TF32": (0, (3, 2)), "FP16": (0, (6, 3))}
TUNED_IS = "Tuned and plain differ in precision too (07_precision separates the two)."


def throughput(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s against the batch, a panel a model, beside what the nominal peaks of each precision allow."""
    if not trials:
        return NOTHING
    data = engines.values(results, trials, "images_per_s").assign(bound=_bounds(results, trials))
    bounded = data["bound"].notna().any()
    beside = "Faint lines: the roofline of the nominal peaks. " if bounded else "No nominal peaks, so no bound. "
    return _against_batch(
        results,
        trials,
        data,
        name="batch-throughput",
        label="images/s (log scale)",
        caption=f"Training throughput against the batch. {beside}{TUNED_IS if _is_mixed(data) else ''}",
        alt=f"Log-log line plots of images per second against the batch size, one panel a model, a line an engine. "
        f"{_peak(data)}",
    )


def epoch_time(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Seconds per epoch against the batch, a panel a model."""
    if not trials:
        return NOTHING
    data = engines.values(results, trials, "epoch_s").assign(bound=None)
    if data["value"].isna().all():
        return Text(
            "No trial has a time per epoch: none gave a result, or none says how many training images there are."
        )
    images = next((found for trial in trials if (found := results.fact(trial, "train_images"))), None)
    of = f" of {images:,} images" if images else ""
    return _against_batch(
        results,
        trials,
        data,
        name="batch-epoch-time",
        label="seconds an epoch (log scale)",
        caption=f"Time per epoch{of} at the throughput of the timed blocks. {TUNED_IS if _is_mixed(data) else ''}",
        alt="Log-log line plots of the seconds an epoch takes against the batch size, by model and engine.",
        lost_at=0.96,
    )


def _bounds(results: Results, trials: Sequence[Trial]) -> list[float | None]:
    found = []
    for trial in trials:
        peaks = roofline.nominal(results.profile.peaks, trial.precision)
        work = roofline.model_work(trial.model, trial.batch, image_px=trial.image_px, optimizer=trial.optimizer)
        limit = roofline.bound(work, peaks) if trial.model in MODELS and peaks.flop_per_s else None
        found.append(limit.images_per_s if limit else None)
    return found


def _is_mixed(data: pd.DataFrame) -> bool:
    return len(set(data["precision"])) > 1


def _peak(data: pd.DataFrame) -> str:
    known = data.dropna(subset=["value"])
    if not len(known):
        return "No trial has a result."
    best = known.loc[known["value"].astype(float).idxmax()]
    return f"The most: {best['trial']}, {number(best['value'])} images/s."


def _against_batch(
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


def speed_up(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s of each tuned engine over the plain loop, against the batch."""
    data = engines.ratios(results, engines.over_plain(results, engines.in_order(trials)), "images_per_s")
    known = data.dropna(subset=["value"])
    if not len(known):
        return Text("No tuned trial stands beside a plain one with a result, so there is no speed-up to show.")
    pairs = engines.over_plain(results, trials)
    shown = engines.in_order(list(dict.fromkeys(trial for pair in pairs for trial in pair)))
    low, high = known["value"].astype(float).min(), known["value"].astype(float).max()
    return _against_batch(
        results,
        shown,
        data.assign(bound=None),
        name="batch-speed-up",
        label="images/s over the plain loop's",
        log=False,
        caption=f"Speed-up of the tuned engines over the plain loop of the same model and batch, formed within each "
        f"pass first. {TUNED_IS if len({trial.precision for trial in shown}) > 1 else ''}",
        alt=f"Line plots of the speed-up over the plain loop against the batch size, a panel a model, a line an "
        f"engine, from {number(low)}x to {number(high)}x.",
    )
