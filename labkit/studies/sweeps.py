"""Rules of a sweep over batch sizes: where throughput levels off, and what is best beside the baseline."""

from __future__ import annotations

import pandas as pd

NEAR_PEAK = 0.9
BASELINE, OPTIMISED = "baseline", "optimised"


def levels_off(rates: pd.DataFrame, by: str = "mode") -> pd.Series:
    """The smallest batch within 10 % of the largest throughput that was measured, per value of `by`.

    `rates` has the columns `by`, `batch` and `value` (images/s), as `estimate` gives them. Where the result is the
    largest batch of the sweep, a larger one might gain more.

    >>> rates = pd.DataFrame({"mode": "baseline", "batch": [64, 256, 2048], "value": [40.0, 95.0, 100.0]})
    >>> levels_off(rates).to_dict()
    {'baseline': 256}
    """
    peak = rates.groupby(by)["value"].transform("max")
    return rates[rates["value"] >= NEAR_PEAK * peak].groupby(by)["batch"].min()


def beside_baseline(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the baseline, and at each batch those of the fastest other mode; `side` says which.

    `frame` is a table of results of one network, with the columns `mode`, `batch` and `images_per_s`.
    """
    others = frame[frame["mode"] != BASELINE].dropna(subset=["images_per_s"])
    means = others.groupby(["batch", "mode"], as_index=False)["images_per_s"].mean()
    fastest = means.sort_values("images_per_s").drop_duplicates("batch", keep="last")[["batch", "mode"]]
    sides = [frame[frame["mode"] == BASELINE].assign(side=BASELINE), others.merge(fastest).assign(side=OPTIMISED)]
    return pd.concat(sides, ignore_index=True)
