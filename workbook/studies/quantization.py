"""Rules of the INT8 study: accuracy lost in papers, and layers that multiply bytes."""

from __future__ import annotations

import pandas as pd

from workbook.studies import published

BYTES = ("i8", "u8")  # the engines' names of types of one byte


def printed_loss(study: str, metric: str) -> pd.DataFrame:
    """Return the papers' accuracy in FP32 minus that in INT8: `model`, `label`, `value` (a fraction of 1)."""
    printed = published.by_precision(study, metric)
    sides = printed.pivot_table(index=["model", "label"], columns="precision", values="value", sort=False)
    lost = sides.reindex(columns=["fp32", "int8"]).astype(float)
    return (lost["fp32"] - lost["int8"]).dropna().rename("value").reset_index()


def layers_in_bytes(layers: pd.DataFrame) -> pd.DataFrame:
    """Return how many layers multiply bytes in INT8: `model`, `image_px`, `mode`, `kind`, `in_bytes`, `layers`.

    `layers` is `Results.facts("layers")`, the engine's report of compiled layers: `Convolution.i8` is a number of
    layers. Batches and runs that agree are one row.
    """
    counts = layers[layers["precision"] == "int8"]
    counts = counts.join(counts["field"].str.extract(r"(?P<kind>\w+)\.(?P<type>\w+)")).astype({"value": float})
    counts["in_bytes"] = counts["value"].where(counts["type"].isin(BYTES), 0.0)
    keys = ["model", "image_px", "mode", "kind"]
    of_record = counts.groupby(["record", *keys], sort=False)[["in_bytes", "value"]].sum().astype(int)
    counted = of_record.rename(columns={"value": "layers"}).reset_index().drop(columns="record")
    return counted.drop_duplicates(ignore_index=True)
