"""Pictures of a WGAN's training: utilisation and step time against the mini-batch, and what its generator makes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, no_result, panels, points, sizes_axis, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import listing, number
from labkit.analysis.results import Results
from labkit.analysis.speed import NOTHING
from labkit.analysis.studies.gan import meanings, of, series_of
from labkit.analysis.table import Text
from labkit.records import Record
from labkit.registry import METRICS
from labkit.trial import Trial

ENOUGH = 500  # iterations after which digits became legible on a CPU, at mini-batch 64 with clipped weights in BF16
LINES = {"eager": "-", "graph": "--"}
GRIDS = {
    "samples_before_png": "before training",
    "samples_png": "after training",
    "samples_real_png": "real images",
}


def utilisation(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The paper's first picture: time in which the device computes against the mini-batch, beside its own counter."""
    return _against_batch(
        results,
        trials,
        ("compute_utilisation", "sm_activity"),
        name="gan-utilisation",
        caption="Share of the time in which the device computes, against the mini-batch.",
        alt="the share of the time in which the device computes",
    )


def arithmetic(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The paper's second picture: FP32 utilisation against the mini-batch, beside the pipes' own counters."""
    return _against_batch(
        results,
        trials,
        ("fp32_utilisation", "fp32_activity", "tensor_activity"),
        name="gan-arithmetic",
        caption="How much of its arithmetic the device does, against the mini-batch.",
        alt="FP32 utilisation and the activity of pipes",
    )


def step_time(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Time of an iteration against the mini-batch: flat while launches bound it."""
    bounds = "launches bound it" if results.profile.device.kind == "cuda" else "passes over the weights bound it"
    return _against_batch(
        results,
        trials,
        ("step_s",),
        name="gan-step",
        caption=f"Time of an iteration against the mini-batch: where it does not grow with the work, {bounds}.",
        alt="the time of an iteration",
        log=True,
    )


def _against_batch(
    results: Results,
    trials: Sequence[Trial],
    metrics: Sequence[str],
    *,
    name: str,
    caption: str,
    alt: str,
    log: bool = False,
) -> Figure | Text:
    """A panel a metric that some trial has, a line a way to train."""
    if not trials:
        return NOTHING
    data = _data(results, trials, metrics)
    shown = [metric for metric in metrics if data.loc[data["metric"] == metric, "value"].notna().any()]
    if not shown:
        labels = listing([METRICS[metric].label for metric in metrics])
        return Text(f"No trial says anything of this, so there is no picture: {labels}.")
    data = data[data["metric"].isin(shown)]
    kinds = list(dict.fromkeys(data["training"]))

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(shown), min(len(shown), 3), sharex=True)
        for axes, metric in zip(grid, shown, strict=True):
            about = METRICS[metric]
            for place, kind in enumerate(kinds):
                one = data[(data["metric"] == metric) & (data["training"] == kind)].sort_values("batch")
                colour, marker = theme.palette[place % len(theme.palette)], MARKERS[place % len(MARKERS)]
                scaled = one.assign(**{end: one[end].astype(float) * about.scale for end in ("value", "low", "high")})
                line = LINES[str(one["engine"].iloc[0])]
                points(axes, list(one["batch"]), scaled, colour=colour, marker=marker, line=line, label=kind)
                no_result(axes, list(one["batch"][one["failed"].notna()]), colour)
            sizes_axis(axes, list(data["batch"]), "mini-batch")
            axes.set_ylabel(f"{about.unit}{' (log scale)' if log else ''}")
            axes.set_title(about.label, fontsize=8.5, color=theme.ink)
            tidy(axes, theme, grid="y")
            if log:
                log_axis(axes, "y")
            else:
                axes.set_ylim(0, 103 if about.share else None)
        legend_above(figure, grid, ncols=4)

    lost = engines.failures_sentence(results, trials)
    told = f" {words}" if (words := meanings(results, trials, metrics)) else ""
    printed = data.rename(columns={"value": "value (SI)"}).drop(columns=["engine"])
    return Figure(
        name=name,
        draw=draw,
        again=results.again,
        caption=f"{caption}{told}{lost} {engines.conditions(results, list(trials))}. Bars: 95 % interval.",
        alt=f"Line plots of {alt} against the mini-batch, a line each for {listing(kinds)}. "
        f"{_extremes(data, shown[0])}",
        data=printed.drop(columns=["failed"] if printed["failed"].isna().all() else []),
        size_in=(8.0, 3.6),
    )


def _data(results: Results, trials: Sequence[Trial], metrics: Sequence[str]) -> pd.DataFrame:
    rows = [
        {
            "metric": metric,
            "training": series_of(trial, trials),
            "engine": trial.engine,
            "batch": trial.batch,
            **engines.ends(of(results, trial, metric)),
            "failed": engines.failure(results, trial),
        }
        for metric in metrics
        for trial in trials
    ]
    return pd.DataFrame(rows)


def _extremes(data: pd.DataFrame, metric: str) -> str:
    about, known = METRICS[metric], data[(data["metric"] == metric) & data["value"].notna()]
    low, high = (known.loc[known["value"].astype(float).agg(which)] for which in ("idxmin", "idxmax"))
    said = [
        f"{number(row['value'] * about.scale)} {about.unit} ({row['training']}, mini-batch {row['batch']:,})"
        for row in (low, high)
    ]
    return f"From {said[0]} to {said[1]}." if said[0] != said[1] else f"All: {said[0]}."


def iterations_of(record: Record) -> int:
    """How many iterations a generator had learned from when it was asked for images."""
    assert record.blocks is not None
    timed = sum(record.blocks.warmup_steps) + record.blocks.steps_per_block * len(record.blocks.host_s)
    return max(int(record.trial["steps_before"]), timed)


def distances(record: Record) -> list[tuple[int, float]]:
    """The critic's estimate against the iterations: means of blocks, and of the iterations after them."""
    assert record.blocks is not None
    found, at = [], 0
    of_blocks = list(zip(record.blocks.warmup_steps, record.blocks.warmup_loss, strict=False))
    of_blocks += [(record.blocks.steps_per_block, loss) for loss in record.blocks.loss]
    for steps, loss in of_blocks:
        at += steps
        found.append((at, loss))
    later = [(int(after), loss) for after, loss in record.facts.get("later_loss", [])]
    return [(after, loss) for after, loss in [*found, *later] if loss is not None]


def samples(results: Results, trial: Trial | None) -> Figure | Text:
    """What the generator makes of the same noise before and after training, beside real images; below, the estimate."""
    records = [record for record in results.ok(trial) if "samples_png" in record.facts] if trial else []
    if trial is None or not records:
        return Text("No generator was asked for images here, so whether it learns can't be seen on this page.")
    record = records[0]
    count, course = iterations_of(record), distances(record)
    data = pd.DataFrame(course, columns=["iterations", "estimated distance"])

    def draw(figure: Any, theme: Theme) -> None:
        places = figure.add_gridspec(2, len(GRIDS), height_ratios=(1.4, 1))
        for place, (name, title) in enumerate(GRIDS.items()):
            axes = figure.add_subplot(places[0, place])
            axes.imshow(_pixels(record.facts[name]), interpolation="none")
            axes.set_title(title, fontsize=9.5, color=theme.ink)
            axes.set_axis_off()
        axes = figure.add_subplot(places[1, :])
        axes.plot(data["iterations"], data["estimated distance"], color=theme.palette[0], lw=1.4, marker="o", ms=3)
        axes.set_xlabel("iterations")
        axes.set_ylabel("estimate")
        tidy(axes, theme, grid="y")

    said = [
        f"{trial.samples} images that the generator makes of the same noise before training and after {count:,} "
        f"iterations, beside real ones, in sixteen colours each.",
        "Below: the critic's estimate of the distance between the two, which should fall once the critic has learned.",
        f"It goes from {number(course[0][1])} to {number(course[-1][1])}." if course else "",
        "" if count >= ENOUGH else f"That is too few for legible images, which take some {ENOUGH:,} or more.",
        f"Pass {record.pass_number}: {trial.data}, mini-batch {trial.batch:,}, {series_of(trial, [trial])}, "
        f"{trial.constraint.replace('_', ' ')}; {results.describe()}.",
    ]
    return Figure(
        name="gan-samples",
        draw=draw,
        again=results.again,
        caption=" ".join(part for part in said if part),
        alt=f"Three grids of {trial.samples} small images: generated before training, generated after {count:,} "
        f"iterations, and real; below them a line of the critic's estimate over the iterations.",
        data=data if len(data) else pd.DataFrame({"images": list(GRIDS.values())}),
        size_in=(8.0, 4.4),
    )


def _pixels(png: str) -> Any:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"))
