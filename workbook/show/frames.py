"""DataFrames for figures and tables: estimates in display order, reasons for missing estimates, cells as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.errors import UserError
from workbook.registry import METRICS
from workbook.results.columns import IMAGES, OVER, QUANTITY, REASONS, check_columns, single
from workbook.results.estimates import estimate
from workbook.results.in_time import SLOWED
from workbook.results.intervals import HOSTS
from workbook.words import (
    MISSING,
    NAN,
    NOT_MEASURED,
    heading,
    in_order,
    is_missing,
    label,
    metric_of,
    number,
    phrase,
    within_sentence,
)

INTERVAL = ("value", "low", "high")
NUMBER_DIGITS = 4  # of the tables behind figures, which give exact values


def estimates(data: pd.DataFrame, metric: str, by: Sequence[str]) -> pd.DataFrame:
    """Return one row per group of `by`, in display order: `value`, `low`, `high`, …, and a `reason` if `value` is NaN.

    `data` is a table of results, or is aggregated already (it has the columns `value` and `by`). Raise UserError for a
    missing column, and where `estimate` raises it.
    """
    check_columns(data, ())
    single(metric)
    aggregated = "value" in data and metric not in data
    if aggregated:
        check_values(data, metric)
    if data.empty:
        nothing = pd.DataFrame({name: [] for name in (*by, *INTERVAL, "reason")})
        nothing.attrs = dict(data.attrs)
        return nothing
    check_columns(data, [*by, "value" if aggregated else metric])
    if aggregated:
        frame = data.reset_index(drop=True).assign(reason=[_reason(row) for row in data.to_dict("records")])
        frame = frame.assign(**{end: NAN for end in ("low", "high") if end not in frame})
    else:
        frame = _with_reasons(data, estimate(data, metric, by), by, metric)
    frame["reason"] = frame["reason"].where(frame["value"].isna(), "")
    frame = frame.drop(columns=QUANTITY, errors="ignore")  # all values are of the metric
    frame = sorted_rows(frame.astype(dict.fromkeys(INTERVAL, float)), by)
    frame.attrs = {**({OVER: IMAGES} if "image" in data else {}), **data.attrs}
    return frame


def interval_note(frame: pd.DataFrame, marks: str, limits: Sequence[float] = (-math.inf, math.inf)) -> str:
    """Return a caption's sentence on the intervals of estimates that a figure draws as `marks`, or why it draws none.

    `limits` are the ends of the axis, in the unit of `frame`. The sentence is empty for a table of other origin, whose
    ends may be no intervals, and for runs that give none.

    >>> of_runs = pd.DataFrame({"value": [9.0], "low": [8.0], "high": [10.0], "passes": [3], "hosts": [1]})
    >>> interval_note(of_runs, "Bands"), interval_note(of_runs.assign(low=NAN, passes=1), "Bands")
    ('Bands are 95 % intervals over runs.', 'A value of one run has no interval.')
    >>> interval_note(of_runs, "Bands", (0.0, 9.5))
    'Bands are 95 % intervals over runs; long ones are cut.'
    """
    if not {*INTERVAL, "passes", "hosts"} <= set(frame) or frame["value"].isna().all():
        return ""
    shown = frame.dropna(subset=["value"])
    if shown[["low", "high"]].isna().any(axis=1).all():
        return "A value of one run has no interval." if shown["passes"].max() == 1 else ""
    over = basis(shown["hosts"].max()) if frame.attrs.get(OVER) != IMAGES else f"over {IMAGES}"
    is_cut = shown["low"].min() < limits[0] or shown["high"].max() > limits[1]
    return f"{marks} are 95 % intervals {over}{'; long ones are cut' if is_cut else ''}."


def basis(machines: int) -> str:
    """Return what means and intervals are over, for a caption, if the most machines of a value are so many.

    >>> basis(1), basis(3)
    ('over runs', 'over three or more equal machines, else over runs')
    """
    return "over three or more equal machines, else over runs" if machines >= HOSTS else "over runs"


def check_values(data: pd.DataFrame, shown_as: str) -> None:
    """Raise UserError for an estimate, ratio or difference that would stand under another metric's name or unit.

    Tables of other origin carry no mark and stay free, and so do metrics of the caller's own. Raise it too for what
    `check_given` refuses.
    """
    check_given(data)
    for quantity in quantities_of(data):
        _check_value(quantity, shown_as)


def quantities_of(data: pd.DataFrame) -> list[str]:
    """Return what the values of a table are of: metrics, and ratios and differences of metrics; [] if unknown."""
    marks = [data.attrs.get(QUANTITY), *(data[QUANTITY].dropna().unique() if QUANTITY in data else ())]
    return [str(mark) for mark in dict.fromkeys(marks) if mark is not None]


def check_given(data: pd.DataFrame, *names: str) -> None:
    """Raise UserError for no table, or one with rows that lacks the column `value` or one of `names`."""
    check_columns(data, () if isinstance(data, pd.DataFrame) and data.empty else ("value", *names))


def _check_value(quantity: str, shown_as: str) -> None:
    form, _, metric = quantity.rpartition(" of ")
    if metric not in METRICS or shown_as in ("text", quantity):
        return
    of, shown = METRICS[metric], METRICS.get(shown_as)
    if form == "ratio":  # a factor, or a share made of it
        fits = shown_as == "ratio" or (shown is not None and shown.si_unit == "1")
    elif shown is None:
        fits = form == "difference" and (shown_as != "points" or of.si_unit == "1")  # a heading of the caller's own
    else:
        fits = shown.si_unit == of.si_unit and shown.unit != "x"
    if not fits:
        name, unit = within_sentence(of.label), f" ({of.unit})" if of.unit and form != "ratio" else ""
        what = f"{form}s of {name}" if form else name
        own = "speedup" if form == "ratio" else metric
        raise UserError(
            f"these values are {what}{unit}, and {shown_as!r} is another quantity: show them as {own!r}, or form them "
            f"of {shown_as!r}."
        )


def sorted_rows(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the rows sorted by the columns `by`, each in the order of `labels.in_order`."""
    if not by or frame.empty:
        return frame
    frame = frame.reset_index(drop=True)
    places = {name: {value: place for place, value in enumerate(in_order(frame[name], name))} for name in by}
    ranks = frame[list(by)].apply(lambda column: column.map(lambda value: places[column.name].get(value, NAN)))
    ranks = ranks.astype(float)  # the ranks of a categorical column are categorical
    return frame.loc[ranks.sort_values(list(by), kind="stable").index].reset_index(drop=True)


def _with_reasons(data: pd.DataFrame, estimated: pd.DataFrame, by: Sequence[str], metric: str) -> pd.DataFrame:
    """Return every group of the data with its estimate and the reason to show if the estimate is missing."""
    groups = reasons_of(data, by, metric)
    if by:
        return groups.merge(estimated, on=list(by), how="left")
    estimated = estimated if len(estimated) else pd.DataFrame([dict.fromkeys(INTERVAL, NAN)])
    return estimated.assign(reason=[*groups["reason"], NOT_MEASURED][0])


def reasons_of(data: pd.DataFrame, by: Sequence[str], metric: str) -> pd.DataFrame:
    """Return each group of the data with the `reason` for a missing value of a metric, else "not measured".

    It is that of the group's first failed row, or else of its first row whose record says why the value is missing. A
    column that is no metric is withdrawn with the time of a step.
    """
    used = [name for name in data if name in (*by, metric, "status", "reason", REASONS)]  # rows of all metrics are slow
    data, keys = data[used], list(by)
    failed = data[data["status"] != "ok"] if "status" in data else data
    failures = pd.Series([_reason(row) for row in failed.to_dict("records")], failed.index, dtype=object)
    absent = data[data[metric].isna()] if metric in data else data
    texts = absent.get(REASONS, pd.Series(None, absent.index)).astype(object)
    reasons = texts.map({text: _of_metric(metric, text) for text in texts.unique() if isinstance(text, str)})
    rows = [failed.assign(reason=failures)[failures != NOT_MEASURED], absent.assign(reason=reasons)[reasons.notna()]]
    first = pd.concat([of for of in rows if len(of)] or rows)
    if not by:
        return first.head(1)
    first = first.drop_duplicates(keys)[[*keys, "reason"]]
    return data[keys].drop_duplicates().merge(first, on=keys, how="left").fillna({"reason": NOT_MEASURED})


def _of_metric(metric: str, text: str) -> str | None:
    """Return the reason of a metric in a cell of `REASONS`; None without one."""
    reasons = {name: reason for name, _, reason in (line.partition(": ") for line in text.splitlines())}
    of_step = None if metric in METRICS or reasons.get("step_s") != SLOWED else SLOWED
    return reasons.get(metric, of_step)


def _reason(row: Mapping[str, Any]) -> str:
    """Return status and reason as `out of memory: 80 GiB were asked for`, without a missing part."""
    status, reason = (row.get(name) for name in ("status", "reason"))
    words = [] if is_missing(status) or status in ("ok", "") else [label("status", status)]
    words += [] if is_missing(reason) or not reason else [str(reason)]
    return ": ".join(words) or NOT_MEASURED


def why_nothing(frame: pd.DataFrame) -> str:
    """Return why a table has no value: `attrs["reason"]`, or up to three different reasons of its rows."""
    if frame.attrs.get("reason"):
        return str(frame.attrs["reason"])
    reasons = [] if "reason" not in frame else list(dict.fromkeys(map(str, frame["reason"].dropna())))
    return "; ".join([reason for reason in reasons if reason not in ("", NOT_MEASURED)][:3]) or NOT_MEASURED


def phrases(frame: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return the values of the columns in each row as a text; missing ones are left out.

    >>> phrases(pd.DataFrame({"model": ["vgg16", "vgg16"], "devices": [2, None]}), ["model", "devices"]).tolist()
    ['VGG-16, 2 GPUs', 'VGG-16']
    """
    rows = frame[list(columns)].itertuples(index=False, name=None)
    texts = [
        ", ".join(phrase(name, value) for name, value in zip(columns, row, strict=True) if not is_missing(value))
        for row in rows
    ]
    return pd.Series(texts, frame.index, dtype=object)


def configuration(row: Mapping[str, Any]) -> str:
    """Return the configuration of a row as text: `ResNet-50, batch 256`."""
    names = [name for name in row if name not in (*INTERVAL, "reason", "passes", "hosts", "status")]
    return ", ".join(phrase(name, row[name]) for name in names if not is_missing(row[name])) or "this"


def numbers(data: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the numbers behind a figure as text, in display units, without empty columns."""
    registered = metric_of(metric) if metric else None
    columns: dict[str, list[str]] = {}
    for name in data:
        cells = data[name].tolist()
        if all(is_missing(cell) or cell == "" for cell in cells):
            continue
        if name in INTERVAL:
            scale = registered.scale if registered else 1.0
            columns[name] = [number(cell * scale, NUMBER_DIGITS) for cell in cells]
        elif isinstance(cells[0], float) and name not in ("passes", "hosts"):
            scale = 1.0 if metric_of(name).unit in ("%", "x") else metric_of(name).scale  # as its heading says
            columns[name] = [number(cell * scale, NUMBER_DIGITS) for cell in cells]
        else:
            columns[name] = [label(name, cell) for cell in cells]
    headings = {name: heading(name) for name in columns}
    if "passes" not in data:  # `low` and `high` are a range of readings, not an interval
        headings |= {"low": "from", "high": "to"} if "low" in columns else {}
    if data.attrs.get(OVER) == IMAGES:
        headings["passes"] = IMAGES
    if registered and registered.label:
        headings["value"] = (
            f"{heading(metric)}, {registered.unit}" if registered.unit in ("%", "x") else heading(metric)
        )
    return pd.DataFrame(columns).rename(columns=headings).replace("", MISSING)
