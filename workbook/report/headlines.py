"""The figures of a report's index: throughput and energy over ordinary PyTorch, and how busy the device is."""

from __future__ import annotations

import pandas as pd

from workbook.registry import METRICS
from workbook.results import Results, estimate, ratio
from workbook.results.columns import QUANTITY
from workbook.show import Figure, plots
from workbook.studies.sweeps import OPTIMISED, ORDINARY, beside_references
from workbook.words import STRICT, VAGUE_DIGITS, digits_of, number

ROWS = 5
_KEYS = ["model", "image_px", "batch"]
_REFERENCES = {
    ORDINARY: "Ordinary PyTorch: the faster of PyTorch as installed and a tuned eager loop (BF16). ",
    STRICT: "Strict FP32: eager, without TF32, as the papers ran it. ",
}
# What is compared: the first pair that was measured. A title names the second.
_PAIRS = ((OPTIMISED, ORDINARY), (OPTIMISED, STRICT), (ORDINARY, STRICT))


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
            title="{} training is {} times as fast as {}",
            caption="Training images/s.",
        ),
        _compared(
            training[training["study"] == "04_power"],
            "energy_per_image_j",
            name="energy",
            title="{2} takes {1} times the energy of {0} training",
            caption="Energy per training image, one board.",
        ),
        _activity(training),
    ]
    return [figure for figure in made if figure is not None]


def _compared(training: pd.DataFrame, metric: str, *, name: str, title: str, caption: str) -> Figure | None:
    """Draw a metric of a reference and of the best training, for at most ROWS settings.

    `title` has placeholders for the best side, the factor between both and the reference.
    """
    by = ["study", *_KEYS]
    sides = beside_references(training.dropna(subset=[metric]), by=by)
    for best, reference in (pair for pair in _PAIRS if set(pair) <= set(sides["side"])):
        gains = ratio(sides, metric, over={"side": reference}, by=[*by, "side"]).dropna(subset=["value"])
        gains = gains[gains["side"] == best].head(ROWS)
        if not gains.empty:
            break
    else:
        return None
    rows = sides[sides["side"].isin([best, reference])].merge(gains[by])
    if METRICS[metric].better != "more":
        gains = gains.assign(value=1 / gains["value"], low=1 / gains["high"], high=1 / gains["low"])
    ends = dict.fromkeys(number(end, VAGUE_DIGITS) for end in (gains["value"].min(), gains["value"].max()))
    vague = (gains.apply(lambda row: digits_of(row["value"], row["low"], row["high"]), axis=1) == VAGUE_DIGITS).any()
    factor = ("about " if vague else "") + " to ".join(ends)
    said = title.format(best, factor, reference)
    if ((gains["low"] <= 1) & (gains["high"] >= 1)).all():
        said = f"No difference found between {reference} and {best} training"
    return plots.dots(
        estimate(rows, metric, by=[*_KEYS, "side"]),
        y=_KEYS,
        x=metric,
        hue="side",
        title=said[0].upper() + said[1:],
        caption=f"{caption} {_REFERENCES.get(reference, '')}Whiskers: 95 % intervals.",
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
