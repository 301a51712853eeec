"""The columns of a table of results in groups, and their meanings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pandas as pd

from labkit.errors import UserError, nearest_first
from workbook.registry import METRICS
from workbook.trials.trial import WORDS, Trial
from workbook.words import NOT_MEASURED

# What ran: the fields of a trial, and `mode`, the name of its execution mode.
WHAT_RAN = ["mode", *(field.name for field in fields(Trial))]
# The origin of records: passes of one profile, study and host belong together.
RECORDS = ["profile", "study", "host"]
WHERE_AND_WHEN = [
    *RECORDS,
    *("device_name", "machine", "pass_number", "planned_passes", "process", "protocol", "scale"),
    *("started_at", "commit", "record", "image_set"),
]
REASONS = "reasons"
HOW_IT_ENDED = ["status", "reason", REASONS]
_MEANINGS = {
    "mode": "execution mode: `strict FP32` is the papers' kind of loop; others leave out the precision",
    "profile": "device file in `params/`",
    "study": "study that measured the row",
    "host": "machine, by a hash of its hardware and of what lasts in it",
    "machine": "hardware and framework; machines with equal texts can be pooled",
    "pass_number": "round of the study; each round starts fresh processes",
    "planned_passes": "rounds that the study plans for this configuration",
    "process": "process that measured the row",
    "quantity": "metric that `value` is of, or the ratio or difference of it",
    "protocol": "version of how numbers are made; records of two versions are never pooled",
    "image_set": "size of a user's set of images in files",
    "record": "raw record: file below `reports/` and line, counted from 1",
    "status": "`ok`, or why there is no result",
    REASONS: "why metrics have no value, a line each: `power_w: no such sensor`",
}
NEAREST = 5  # names of columns in an error
MOST_LISTED = 12  # values of a column in a message
# What the values of an estimate are of: a column, and a key of `attrs`. Merging keeps the first, `table[…]` the second.
QUANTITY = "quantity"
BASE = "base"  # a key of `attrs`: the columns and values that identify the base of ratios and differences
OVER, IMAGES = "over", "images"  # a key of `attrs`, and its value where intervals are over images instead of runs


def describe(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per column of a table of results: meaning, unit, number of rows with a value, and an example.

    Columns without any value are left out.

    >>> import workbook
    >>> workbook.describe(workbook.load("h200", "training").frame())  # doctest: +SKIP
    """
    check_columns(data, ())
    rows = []
    for name in data.columns:
        values = data[name].dropna()
        if len(values):
            metric = METRICS.get(name)
            meaning, unit = (metric.label, metric.si_unit) if metric else (_meaning(name), "")
            rows.append((name, meaning, unit, len(values), values.iloc[0]))
    return pd.DataFrame(rows, columns=["column", "meaning", "unit", "values", "example"]).set_index("column")


def _meaning(name: str) -> str:
    """Return the meaning of a column that is no metric: of a trial's field, the text beside it and its words."""
    field = Trial.__dataclass_fields__.get(name)
    text = _MEANINGS.get(name) or (field and field.metadata.get("meaning")) or name.replace("_", " ")
    return f"{text} ({', '.join(WORDS[name])})" if name in WORDS else text


def copy_reason(data: pd.DataFrame, metric: str, name: str) -> pd.DataFrame:
    """Return the rows with a metric's reason also for the column `name`, which is made of the metric.

    The copy is the last line of `name`, and the last line counts.

    >>> rows = pd.DataFrame({REASONS: ["epoch_s: the epochs were not timed", ""]})
    >>> copy_reason(rows, "epoch_s", "target_s")[REASONS].tolist()
    ['epoch_s: the epochs were not timed\\ntarget_s: the epochs were not timed', '']
    """
    if REASONS not in data:
        return data
    texts = data[REASONS].astype(object)
    reason = texts.str.extract(rf"(?m)^{metric}: (.*)$", expand=False)
    return data.assign(**{REASONS: texts.where(reason.isna(), texts + f"\n{name}: " + reason)})


def unique(*names: str | Iterable[str] | None) -> list[str]:
    """Return the given column names, each once; None and empty arguments are skipped."""
    flat = [part for name in names if name for part in ([name] if isinstance(name, str) else name)]
    return list(dict.fromkeys(flat))


def single(*names: str | None) -> list[str]:
    """Return the given column names as `unique` does. Raise UserError for several columns in the place of one."""
    for name in names:
        if not (name is None or isinstance(name, str)):
            raise UserError(
                f"one column is valid where {name!r} was given. Choose one, or make one of them: "
                f"`table.assign(both=table['model'] + ' ' + table['mode'])`."
            )
    return unique(*names)


def listed(values: Iterable[Any]) -> str:
    """Return the first values as text: `16, 64, 256`.

    >>> listed(["resnet50", "vgg16"]), listed([])
    ("'resnet50', 'vgg16'", 'nothing')
    """
    texts = [repr(value.item() if hasattr(value, "item") else value) for value in values]
    return ", ".join([*texts[:MOST_LISTED], *(["…"] if len(texts) > MOST_LISTED else [])]) or "nothing"


def check_kind(data: pd.DataFrame, column: str, value: Any) -> None:
    """Raise UserError for a text as a value of a column of numbers. "not measured" stands for a missing value."""
    held, is_text = data[column].dropna(), isinstance(value, str) and value != NOT_MEASURED
    if len(held) and is_text and pd.api.types.is_numeric_dtype(held.infer_objects()):
        here = listed(held.unique())
        raise UserError(f"the column {column} holds numbers, and {value!r} is a text; it is {here} here.")


def check_columns(data: pd.DataFrame, names: Iterable[str]) -> None:
    """Raise UserError for data that are no table, or, with the nearest names, if a table lacks one of the columns."""
    if not isinstance(data, pd.DataFrame):
        raise UserError(f"a table is valid where {type(data).__name__} was given, such as `results.frame()`.")
    names = [*names]
    if others := [name for name in names if not isinstance(name, str)]:
        raise UserError(f"a column has a text as its name, and {others[0]!r} was given.")
    absent = [name for name in dict.fromkeys(names) if name not in data]
    if absent:
        near = [f"nearest to {name}: {', '.join(nearest_first(name, map(str, data))[:NEAREST])}" for name in absent]
        raise UserError(
            f"the table has no column {', '.join(absent)}; {'; '.join(near)}. `workbook.describe(table)` lists its "
            f"columns with their meanings."
        )
