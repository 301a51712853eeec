"""The figures of a report's index: optimised throughput, energy per image, and how busy the device is."""

from __future__ import annotations

import pandas as pd

from workbook.registry import METRICS
from workbook.results import Results, estimate, ratio
from workbook.results.columns import QUANTITY
from workbook.show import Figure, plots
from workbook.words import VAGUE_DIGITS, digits_of, number

OPTIMISED = ("compiled + CUDA graph", "CUDA graph", "eager, fused SGD")  # in order of preference
ROWS = 5
_KEYS = ["model", "image_px", "batch"]
_GAIN = ["gain", "gain_low", "gain_high"]  # of the optimised configuration over the baseline, with its interval


def figures(results: Results) -> list[Figure]:
    """Return the figures for which there are results, in the order of the page."""
    frame = results.frame()
    training = frame.query("workload == 'train' and epochs == 0 and devices == 1 and status == 'ok'")
    training = training[training["device"] == training["device"].mode().get(0)]  # study 06 of a GPU has its CPU too
    made = [
        _compared(
            training.query("study == '01_training' and energy_windows == 0 and image_px == 32"),
            "images_per_s",
            name="gain",
            title="Optimised training is {} times as fast",
            caption="Training images/s, baseline (eager, FP32) to optimised (GPU: BF16). Whiskers: 95 % intervals.",
        ),
        _compared(
            training[training["study"] == "04_power"],
            "energy_per_image_j",
            name="energy",
            title="The baseline takes {} times the energy",
            caption="Energy per training image, board power.",
        ),
        _activity(training),
    ]
    return [figure for figure in made if figure is not None]


def _compared(training: pd.DataFrame, metric: str, *, name: str, title: str, caption: str) -> Figure | None:
    """Draw a metric of baseline and optimised training; `title` has a placeholder for the factor between them."""
    pairs = _pairs(training, metric)
    if pairs.empty:
        return None
    best = pairs[pairs["role"] == "optimised"][_GAIN]
    gains = best["gain"]
    times = gains if METRICS[metric].better == "more" else 1 / gains
    ends = dict.fromkeys(number(end, VAGUE_DIGITS) for end in (times.min(), times.max()))
    if ((best["gain_low"] <= 1) & (best["gain_high"] >= 1)).all():
        title = "No difference found between baseline and optimised"
    about = "about " if (best.apply(lambda gain: digits_of(*gain), axis=1) == VAGUE_DIGITS).any() else ""
    return plots.dots(
        pairs,
        y=_KEYS,
        x=metric,
        hue="mode",
        title=title.format(about + " to ".join(ends)),
        caption=caption,
        name=name,
    )


def _activity(training: pd.DataFrame) -> Figure | None:
    chosen = training[training["study"] == "02_batch_size"].query("image_px == 32 and model == 'resnet50'")
    read = chosen.dropna(subset=["utilisation", "sm_activity"])
    if read.empty:
        return None
    by = ["batch", "mode"]
    driver, active = (estimate(read, metric, by=by) for metric in ("utilisation", "sm_activity"))
    batch, mode = widest = (driver.set_index(by)["value"] - active.set_index(by)["value"]).idxmax()
    ends = [f"{number(100 * table.set_index(by)['value'][widest], 2)} %" for table in (driver, active)]
    long = pd.concat([driver.assign(counter="nvidia-smi"), active.assign(counter="SMs with work")])
    long = long.drop(columns=QUANTITY)  # of two metrics, and in percent
    long[["value", "low", "high"]] *= 100
    return plots.dots(
        long.sort_values(["batch", "mode"]).head(2 * ROWS),
        y=["batch", "mode"],
        x="share, %",
        hue="counter",
        title=f"At batch {batch} ({mode}), nvidia-smi reads {ends[0]} while {ends[1]} of SMs work",
        caption="ResNet-50, 32 px: share of time with any kernel, and share of multiprocessors with work.",
        name="activity",
    )


def _pairs(training: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric of baseline and optimised configurations of the same study, for at most ROWS settings."""
    measured = training.dropna(subset=[metric])
    measured = measured[measured["mode"].isin(["baseline", *OPTIMISED])]
    measured = measured[(measured["mode"] != "baseline") | (measured["precision"] == "fp32")]
    if measured.empty:
        return measured.assign(role="", **dict.fromkeys(_GAIN, float("nan")))
    values = estimate(measured, metric, by=["study", *_KEYS, "mode", "precision", "loader", "threads"])
    gains = ratio(measured, metric, over={"mode": "baseline"}, by=["study", *_KEYS, "mode"]).rename(
        columns={"value": "gain", "low": "gain_low", "high": "gain_high"}
    )
    gains = gains.dropna(subset=["gain"])  # a value of 0 has no ratio
    gains["order"] = gains["mode"].map({mode: place for place, mode in enumerate(OPTIMISED)})
    best = gains.sort_values("order").drop_duplicates(_KEYS).sort_values(["order", *_KEYS]).head(ROWS)
    optimised = values.merge(best[[*_KEYS, "mode", *_GAIN]], on=[*_KEYS, "mode"]).assign(role="optimised")
    baseline = values[values["mode"] == "baseline"].merge(best[_KEYS], on=_KEYS).assign(role="baseline")
    columns = [*_KEYS, "mode", "value", "low", "high", "passes", "hosts", "role", *_GAIN]
    return pd.concat([baseline, optimised]).reindex(columns=columns).drop_duplicates([*_KEYS, "mode"])
