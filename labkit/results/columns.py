"""The columns of a table of results in groups, and their meanings."""

from __future__ import annotations

from dataclasses import fields

import pandas as pd

from labkit.registry import METRICS
from labkit.trial import ASKED_AFTER, Trial

# What ran: the fields of a trial, and `mode`, the name of its execution mode.
WHAT_RAN = ["mode", *(field.name for field in fields(Trial))]
# The origin of records: passes of one profile, study and host belong together.
RECORDS = ["profile", "study", "host"]
WHERE_AND_WHEN = [
    *RECORDS,
    *("device_name", "pass_number", "process", "protocol", "scale", "started_at", "commit", "record"),
]
HOW_IT_ENDED = ["status", "reason"]


def describe(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per column of a table of results: meaning, unit, number of rows with a value, and an example.

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


__all__ = ["ASKED_AFTER", "HOW_IT_ENDED", "RECORDS", "WHAT_RAN", "WHERE_AND_WHEN", "describe"]
