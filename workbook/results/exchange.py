"""`numbers.csv` and `numbers.parquet`: the table of results aggregated over passes, unrounded and in SI units."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from workbook.hardware.profile import load_profile
from workbook.registry import METRICS
from workbook.results.columns import WHAT_RAN
from workbook.results.intervals import interval_of, numbers_of
from workbook.results.table import Results
from workbook.statistics import CONFIDENCE

# A sensor that is read 25 times a second says little about a second: such values are marked.
OF_POWER, FEW_READINGS = ("power_w", "power_fraction", "images_per_s_per_w"), 20
_ABOUT = ["profile", "device_name", "host", "study", "scale", "protocol"]
COLUMNS = [
    *(*_ABOUT, "commit", *WHAT_RAN),
    *("metric", "unit", "value", "low", "high", "confidence", "passes", "status", "reason", "records"),
]


def numbers(results: Results) -> pd.DataFrame:
    """Return the mean of every metric of every trial with its 95 % interval: one row per trial and metric.

    A trial that failed in some pass also has a row with its reason, even if other passes have a result.
    """
    frame = results.frame()
    passes = frame[[*_ABOUT, *WHAT_RAN, "commit", "record", "status", "reason"]].to_dict("records")
    values = frame[list(METRICS)].to_numpy(dtype=float)
    groups = frame.groupby([*_ABOUT, "key_hash"], sort=False, dropna=False).indices
    rows = [row for places in groups.values() for row in _of_trial([passes[n] for n in places], values[places])]
    return pd.DataFrame(rows, columns=COLUMNS).astype(frame.dtypes[WHAT_RAN].to_dict())


def _of_trial(passes: list[dict[str, Any]], values: np.ndarray) -> list[dict[str, Any]]:
    """Return the rows of a trial, from its passes and their metrics (a row per pass, a column per metric)."""
    first = passes[0]
    common = {
        **{name: first[name] for name in (*_ABOUT, *WHAT_RAN)},
        "commit": " ".join(sorted({made["commit"] for made in passes})),
        "records": _records(made["record"] for made in passes),
    }
    rows = []
    readings = np.fmin.reduce(values[:, list(METRICS).index("power_readings")])  # NaN only if all are
    for metric, column in zip(METRICS.values(), values.T, strict=True):
        interval = interval_of(column[~np.isnan(column)].tolist(), metric.name)
        if interval is not None:
            ends = dict(zip(("value", "low", "high"), numbers_of(interval), strict=True)) | {"passes": interval.n}
            few = metric.name in OF_POWER and readings < FEW_READINGS
            why = f"from fewer than {FEW_READINGS} readings of power" if few else None
            cost = load_profile(first["profile"]).cost if metric.unit == "currency" else None
            about = {"reason": why, "metric": metric.name, "unit": cost.currency if cost else metric.si_unit}
            rows.append({**common, **about, **ends, "confidence": CONFIDENCE, "status": "ok"})
    failed = [made for made in passes if made["status"] != "ok"]
    if not failed:
        return rows
    reasons = "; ".join(dict.fromkeys(made["reason"] for made in failed if made["reason"]))
    status = "; ".join(dict.fromkeys(made["status"] for made in failed))
    return [*rows, {**common, "passes": 0, "status": status, "reason": reasons or None}]


def _records(places: Iterable[str]) -> str:
    """Return the places of all passes in one text: `h200/records/<host>/01_training.jsonl.gz:3,40,77`."""
    by_file: dict[str, list[int]] = {}
    for place in places:
        file, _, line = place.rpartition(":")
        by_file.setdefault(file, []).append(int(line))
    return "; ".join(f"{file}:{','.join(map(str, sorted(lines)))}" for file, lines in by_file.items())
