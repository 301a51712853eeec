"""Rules of a sweep over batch sizes: the batch at which throughput levels off, and the fastest mode per batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

NEAR_PEAK = 0.9
BASELINE, OPTIMISED = "baseline", "optimised"


def levels_off(rates: pd.DataFrame, by: str = "mode") -> pd.Series:
    """Return the smallest batch within 10 % of the largest measured throughput, per value of `by`.

    `rates` has the columns `by`, `batch` and `value` (images/s), as `estimate` returns them. If the result is the
    largest batch of the sweep, a larger batch might gain more.

    >>> rates = pd.DataFrame({"mode": "baseline", "batch": [64, 256, 2048], "value": [40.0, 95.0, 100.0]})
    >>> levels_off(rates).to_dict()
    {'baseline': 256}
    """
    peak = rates.groupby(by)["value"].transform("max")
    return rates[rates["value"] >= NEAR_PEAK * peak].groupby(by)["batch"].min()


def fastest(frame: pd.DataFrame, by: Sequence[str], of: Sequence[str]) -> pd.DataFrame:
    """Return the rows of the fastest configuration, which the columns `of` identify, in each group of `by`.

    It has the largest geometric mean of `images_per_s` over runs, as in the verdicts. If no configuration of a group
    has a value, a failed one stays, with its reason.

    >>> rows = pd.DataFrame({"batch": 64, "mode": ["baseline", "CUDA graph"], "images_per_s": [40.0, 90.0]})
    >>> fastest(rows, ["batch"], ["mode"])["mode"].tolist()
    ['CUDA graph']
    """
    rates = frame.assign(rate=np.log(frame["images_per_s"])).groupby([*by, *of], sort=False, as_index=False)
    ranked = rates["rate"].mean().sort_values("rate", ascending=False, kind="stable")
    return frame.merge(ranked.drop_duplicates(list(by))[[*by, *of]])


def beside_baseline(frame: pd.DataFrame, by: Sequence[str] = ("batch",)) -> pd.DataFrame:
    """Return the rows of the baseline, and those of the fastest other mode in each group of `by`; `side` says which.

    `frame` is a table of results with the columns `mode`, `images_per_s` and `by`.
    """
    is_baseline = frame["mode"] == BASELINE
    others = frame[~is_baseline].dropna(subset=["images_per_s"])
    sides = frame[is_baseline].assign(side=BASELINE), fastest(others, by, ["mode"]).assign(side=OPTIMISED)
    return pd.concat(sides, ignore_index=True)
