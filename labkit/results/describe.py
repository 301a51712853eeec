"""What the columns of a table of results mean."""

from __future__ import annotations

import pandas as pd

from labkit.registry import METRICS


def describe(data: pd.DataFrame) -> pd.DataFrame:
    """Each column of a table of results: what it means, its unit, how many rows have a value, and an example.

    Columns without any value are left out.

    >>> import labkit
    >>> labkit.describe(labkit.load("h200", "training").frame())  # doctest: +SKIP
    """
    rows = []
    for name in data.columns:
        values = data[name].dropna()
        if len(values):
            metric = METRICS.get(name)
            meaning, unit = (metric.label, metric.si_unit) if metric else (name.replace("_", " "), "")
            rows.append((name, meaning, unit, len(values), values.iloc[0]))
    return pd.DataFrame(rows, columns=["column", "meaning", "unit", "values", "example"]).set_index("column")
