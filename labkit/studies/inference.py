"""Rules of the inference study."""

from __future__ import annotations

import pandas as pd

NEAR_PEAK = 0.9


def levels_off(rates: pd.DataFrame) -> pd.Series:
    """The smallest batch within 10 % of the largest throughput, per `mode`.

    `rates` has the columns `mode`, `batch` and `value` (images/s), as `estimate` gives them.
    """
    peak = rates.groupby("mode")["value"].transform("max")
    return rates[rates["value"] >= NEAR_PEAK * peak].groupby("mode")["batch"].min()
