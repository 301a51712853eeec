"""The arithmetic on tables of results: a value with its 95 % interval, ratios and differences.

`data` is a table with one row per trial, host and pass, as `Results.frame()` gives it. Each function returns one row
per group with the columns `value`, `low`, `high`, `passes`, `hosts` and `quantity`, the metric (or the ratio or
difference of it). `low` and `high` are NaN with a single pass.

Passes are fresh processes, so their values are independent (Georges et al., OOPSLA'07; Hoefler & Belli, SC'15). Rows of
one host give an interval over passes. Rows of three or more equal hosts give one over hosts, from each host's mean over
its passes (`workbook.results.intervals`). Other rows of several hosts are refused: hosts are equal with the same
`machine`, `protocol` and `scale`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.errors import UserError, nearest_first
from labkit.models import MODELS
from workbook.registry import STUDIES
from workbook.results.columns import (
    BASE,
    IMAGES,
    NEAREST,
    OVER,
    QUANTITY,
    RECORDS,
    WHAT_RAN,
    check_columns,
    check_kind,
    listed,
    unique,
)
from workbook.results.intervals import (
    HOSTS,
    Passes,
    are_planned_alike,
    difference_of,
    in_one_process,
    level_of,
    numbers_of,
    ratio_of,
)
from workbook.results.load import is_report
from workbook.results.metrics import OF_STEP
from workbook.statistics import Interval, paired_share_difference, paired_share_ratio
from workbook.trials.trial import ASKED_AFTER, FRAMEWORKS, WINDOWS, WORDS, windows_alike
from workbook.words import MODE_NAMES, NOT_MEASURED

ESTIMATED = ["value", "low", "high", "passes", "hosts"]
_NUMBERS = {"value": float, "low": float, "high": float, "passes": int, "hosts": int}  # of an empty table too
# The columns that tell configurations apart. Fields that apply after the timed part of a trial do not.
IDENTITY = [*(name for name in WHAT_RAN if name not in ASKED_AFTER), *RECORDS]
SHOWN = ("image_px", "framework")  # two rows that differ here answer different questions, so a row must say it
OWN_PROCESSES = ("framework", "devices")  # trials that differ here never run in one process: they are paired by pass
PAIRED_BY = ["pass_number", "planned_passes", "process", *OWN_PROCESSES, *RECORDS]  # what `compare` reads of rows
OF_ANSWERS = ["host", "pass_number", "image"]  # what it reads of answers, of which a table has a row per image
EQUAL = ("machine", "protocol", "scale")  # equal in all rows of hosts that are pooled
Form = Callable[..., Interval | None]
# Rows of one configuration: a table, or its columns as arrays, since a table per group takes longer than its interval.
Rows: TypeAlias = pd.DataFrame | Mapping[str, NDArray[Any]]
# The forms of two sides: over passes, and over the images that both classified.
_FORMS: dict[str, tuple[Form, Form]] = {
    "ratio": (ratio_of, paired_share_ratio),
    "difference": (difference_of, paired_share_difference),
}
# The valid words of columns, unless the caller or a workload of the caller's own has put others there.
_VALID = {**WORDS, "mode": MODE_NAMES, "framework": FRAMEWORKS, "model": tuple(MODELS), "study": tuple(STUDIES)}


def estimate(data: pd.DataFrame, metric: str, by: str | Sequence[str] = ()) -> pd.DataFrame:
    """Return the mean of a metric with its 95 % interval, one row per group of `by`.

    The interval is over passes, or over hosts if a group has rows of three or more equal hosts. Positive values have a
    geometric mean with Student's t on the logarithm. Shares, and values of 0 or less, have an arithmetic mean. A group
    without a value is left out. Raise UserError for a missing column, a metric without numbers, and if a group mixes
    configurations: the message names the columns that `by` lacks. Raise it too for two hosts or unequal ones, and if
    the groups differ in size of image or framework, and no column of `by` says so.

    >>> import workbook
    >>> frame = workbook.load("h200", "batch_size").frame().query("model == 'vgg16' and image_px == 32")
    >>> workbook.estimate(frame, "images_per_s", by=["mode", "batch"])  # doctest: +SKIP
    """
    by = unique(by)
    measured = _measured(data, metric, by)
    _check_side_by_side(measured, by)
    varying = _varying(measured, by)
    columns = _columns(measured, metric, varying)
    found, first_rows = [], []
    for places in _groups(measured, by):
        group = _rows(columns, places)
        _check_one_configuration(group, varying)
        found.append(_estimated(level(group, metric), group))
        first_rows.append(places[0])
    return _as_table(measured[by].iloc[first_rows], found, metric, "level", _over(measured))


def ratio(data: pd.DataFrame, metric: str, *, over: Mapping[str, Any], by: str | Sequence[str]) -> pd.DataFrame:
    """Return a metric divided by that of the rows with the values of `over`, one row per group of `by`.

    Two groups are compared if they agree in all other columns of `by`. If both ran on the same three or more hosts, the
    ratio is formed of each host's means. If both ran in the same passes of a study and host, it is formed within each
    pass. A pass that a second process finished counts only if fewer than three others are left. Else the ratio is
    unpaired (Welch 1947, on the logarithm). So is the ratio of trials with different numbers of planned passes, because
    it uses all passes of both: half of the noisier side's passes are worth more than pairing. Raise UserError as
    `estimate` does, for a word in `over` that its column never holds, for a text in the place of a number, and if both
    sides share one or two of several hosts. Outside a report, warn if no group has a base.

    >>> import workbook
    >>> frame = workbook.load("h200", "batch_size").frame().query("model == 'vgg16' and image_px == 32")
    >>> workbook.ratio(frame, "images_per_s", over={"mode": "strict FP32"}, by=["mode", "batch"])  # doctest: +SKIP
    """
    return _compared(data, metric, over, by, "ratio")


def difference(data: pd.DataFrame, metric: str, *, over: Mapping[str, Any], by: str | Sequence[str]) -> pd.DataFrame:
    """Return a metric minus that of the rows with the values of `over`, one row per group of `by`.

    Groups are paired as in `ratio`. The accuracies `top1` and `top5` of `Results.hits()` are compared image by image:
    half an answer is added to each of the four cells (Agresti & Min 2005, Statistics in Medicine 24:729-740).
    """
    return _compared(data, metric, over, by, "difference")


def _compared(
    data: pd.DataFrame, metric: str, over: Mapping[str, Any], by: str | Sequence[str], form: str
) -> pd.DataFrame:
    if not isinstance(over, Mapping) or not over:
        raise UserError(f'`over` must map columns to values, such as {{"mode": "strict FP32"}}, and is {over!r}.')
    by = unique(by)
    measured = _measured(data, metric, [*by, *over])
    _check_over(data, over)
    shared = [name for name in by if name not in over]
    _check_side_by_side(measured, by)
    is_base = pd.Series(True, index=measured.index)
    for name, value in over.items():
        is_base &= measured[name] == value
    varying, varying_base = _varying(measured, by), _varying(measured, [*shared, *over])
    columns = _columns(measured, metric, varying + varying_base)
    bases, others = (np.flatnonzero(mask.to_numpy(dtype=bool, na_value=False)) for mask in (is_base, ~is_base))
    families, found, first_rows = _numbered(measured, shared), [], []
    for places in _groups(measured[by].iloc[others], by):
        first_row = others[places[0]]
        of_base = bases[families[bases] == families[first_row]]
        if not len(of_base):
            continue
        group, base = _rows(columns, others[places]), _rows(columns, of_base)
        _check_one_configuration(group, varying)
        _check_one_configuration(base, varying_base)
        _check_shared_hosts(group, base)
        found.append(_estimated(compare(form, group, base, metric), group))
        first_rows.append(first_row)
    if not (found or not len(others) or is_report() or NOT_MEASURED in over.values()):
        warnings.warn(f"the {form} has no row: {_why_no_row(measured, metric, over, shared)}.", stacklevel=3)
    return _as_table(measured[by].iloc[first_rows], found, metric, form, {**_over(measured), BASE: dict(over)})


def _over(measured: pd.DataFrame) -> dict[str, str]:
    return {OVER: IMAGES} if "image" in measured else {}


def _measured(data: pd.DataFrame, metric: str, names: Sequence[str]) -> pd.DataFrame:
    """Return the rows with a finite value of the metric. Raise UserError for a missing column, and for texts in it."""
    own = ["host", "pass_number"] if isinstance(data, pd.DataFrame) else []
    if missing := [name for name in own if name not in data]:
        raise UserError(
            f"the table has no column {' and no column '.join(missing)}: an interval needs the run of each row. Keep "
            f"the columns {' and '.join(own)} of `results.frame()`, or give a table with the columns value, low, high."
        )
    check_columns(data, [metric, *names])
    read = {metric, *names, *PAIRED_BY, *OF_ANSWERS, *IDENTITY, *EQUAL}  # copies of all metrics are slow
    measured = data[[name for name in data if name in read]].dropna(subset=[metric])
    if WINDOWS not in (metric, *names) and pd.api.types.is_numeric_dtype(measured.get(WINDOWS)):
        alike = partial(windows_alike, of_step=metric in OF_STEP)
        measured = measured.assign(**{WINDOWS: measured[WINDOWS].map(alike, na_action="ignore")})
    if len(measured) and not pd.api.types.is_numeric_dtype(measured[metric].infer_objects()):
        raise UserError(
            f"the column {metric} has no numbers, such as {measured[metric].iloc[0]!r}, so it is no metric. "
            f"`workbook.describe(table)` lists the metrics with their units."
        )
    return measured[np.isfinite(measured[metric].astype(float))]  # an infinite value is a division by 0


def _why_no_row(measured: pd.DataFrame, metric: str, over: Mapping[str, Any], shared: Sequence[str]) -> str:
    """Return why no group has a base: a value of `over` that the rows lack, or else the columns that differ."""
    for name, value in over.items():
        held = list(dict.fromkeys(measured[name].dropna()))
        if value not in held:
            return f"no row with a value of {metric} has {name}={value!r}; it is {listed(held)} here"
    asked = " and ".join(f"{name}={value!r}" for name, value in over.items())
    return f"no row agrees with one of {asked} in {', '.join(shared) or 'all its columns'}"


def _check_over(data: pd.DataFrame, over: Mapping[str, Any]) -> None:
    """Raise UserError for a text in the place of a number, and for a word that a column never holds.

    A column with words of the caller's own may hold any. "not measured" may stand for the fastest of several modes,
    none of which was measured.
    """
    for name, value in over.items():
        check_kind(data, name, value)
        here, valid = set(data[name].dropna().unique()), _VALID.get(name, ())
        if here and here <= set(valid) and value not in (*valid, NOT_MEASURED):
            near = ", ".join(map(repr, nearest_first(str(value), valid)[:NEAREST]))
            held = ", ".join(map(repr, sorted(here)))
            raise UserError(f"the column {name} never holds {value!r}; nearest: {near}. This table has {held}.")


def level(rows: Rows, metric: str) -> Interval | None:
    """Return the interval of a metric of one configuration, from its rows; None without a value."""
    return level_of(passes(rows, metric), metric)


def compare(form: str, above: Rows, below: Rows, metric: str, metric_below: str | None = None) -> Interval | None:
    """Return the "ratio" or "difference" of two configurations from their rows, or None without values of both.

    `metric_below` is another metric of `below`. This is the arithmetic of `ratio` and `difference`, which explain when
    two sides are compared within passes, and of every verdict on a claim.
    """
    of_passes, of_images = _FORMS[form]
    if "image" in above:
        return of_images(*_answers(above, below, metric))
    first, second = passes(above, metric), passes(below, metric_below or metric)
    paired = _same_records(above, below) and are_planned_alike(first, second, (_planned(above), _planned(below)))
    has_processes = {"process", *OWN_PROCESSES} <= set(above) & set(below)
    if paired and has_processes and all(set(above[name]) == set(below[name]) for name in OWN_PROCESSES):
        processes = [
            dict(zip(zip(rows["host"], rows["pass_number"], strict=True), rows["process"], strict=True))
            for rows in (above, below)
        ]
        first, second = in_one_process((first, second), processes)
    return of_passes(first, second, paired=paired)


def _planned(group: Rows) -> float:
    return float(np.nanmax(group["planned_passes"])) if "planned_passes" in group else math.inf


def _answers(above: Rows, below: Rows, metric: str) -> tuple[Any, Any]:
    """Return which images each configuration classified correctly, in the same order, in their first common pass."""
    shared = sorted(set(above["pass_number"]) & set(below["pass_number"]))
    if not shared:
        raise UserError("no run scored the images of both configurations: compare configurations of one study.")
    sides = [pd.DataFrame({name: side[name] for name in ("pass_number", "image", metric)}) for side in (above, below)]
    hits = [side[side["pass_number"] == shared[0]].set_index("image")[metric].astype(bool) for side in sides]
    first, second = hits[0].align(hits[1], join="inner")
    return first.to_numpy(), second.to_numpy()


def _same_records(above: Rows, below: Rows) -> bool:
    """Return whether both sides ran in the same passes: those of one profile, study and host."""
    return all(len({*above[name]}) == 1 and {*above[name]} == {*below[name]} for name in RECORDS if name in above)


def passes(rows: Rows, metric: str) -> Passes:
    """Return (host, pass number) -> value of a metric, from the rows of one configuration that have one."""
    values = zip(rows["host"], rows["pass_number"], rows[metric].astype(float).tolist(), strict=True)
    return {(host, number): value for host, number, value in values if math.isfinite(value)}


def _numbered(data: pd.DataFrame, by: Sequence[str]) -> NDArray[np.intp]:
    """Return the number of each row's group of `by`, in the order of the groups' first rows."""
    if not by:
        return np.zeros(len(data), dtype=np.intp)
    numbers: NDArray[np.intp] = data.groupby(list(by), sort=False, observed=True, dropna=False).ngroup().to_numpy()
    return numbers


def _groups(data: pd.DataFrame, by: Sequence[str]) -> list[NDArray[np.intp]]:
    """Return the places of the rows of each group of `by`."""
    numbers = _numbered(data, by)
    places = np.argsort(numbers, kind="stable")
    return np.split(places, np.flatnonzero(np.diff(numbers[places])) + 1) if len(data) else []


def _columns(data: pd.DataFrame, metric: str, varying: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the columns that an interval of a group is formed from, and those that the group must not mix."""
    read = OF_ANSWERS if "image" in data else [*PAIRED_BY, "machine"]
    return {name: data[name].to_numpy() for name in unique(metric, read, varying) if name in data}


def _rows(columns: Mapping[str, NDArray[Any]], places: NDArray[np.intp]) -> Rows:
    return {name: values[places] for name, values in columns.items()}


def _varying(data: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """Return the columns of `IDENTITY` and `EQUAL` that have several values within a group of `by`."""
    names = [name for name in (*IDENTITY, *EQUAL) if name in data and name not in by]
    names = [name for name in names if data[name].nunique(dropna=False) > 1]
    if not (by and names):
        return names
    group = _numbered(data, by)
    values = {name: pd.factorize(data[name], use_na_sentinel=False)[0] for name in names}
    return [name for name, of in values.items() if len(np.unique(group * len(data) + of)) > len(np.unique(group))]


def _check_side_by_side(data: pd.DataFrame, by: Sequence[str]) -> None:
    """Raise UserError if groups differ in `SHOWN` without a column for it. A column of the caller's own may say it."""
    if not set(by) <= {*WHAT_RAN, *RECORDS}:
        return
    hidden = [name for name in SHOWN if name in data and name not in by and data[name].nunique() > 1]
    if by and hidden:
        raise UserError(
            f"rows that differ in {', '.join(hidden)} ({_values(data, hidden)}) would stand side by side without "
            f"saying so. Add these columns to `by`, or choose one value of each with `query`."
        )


def _check_one_configuration(group: Rows, varying: Sequence[str]) -> None:
    """Raise UserError if a group mixes configurations or unequal hosts, or if two of its rows are of the same pass."""
    mixed = [name for name in varying if len(pd.unique(group[name])) > 1]
    if of_trials := [name for name in mixed if name not in ("host", *EQUAL)]:
        raise UserError(
            f"the mean would mix configurations that differ in {', '.join(of_trials)} ({_values(group, of_trials)}). "
            f"Add these columns to `by`, or choose one value of each with `query`."
        )
    unequal = [name for name in mixed if name != "host"]
    if unequal or ("host" in mixed and (len(set(group["host"])) < HOSTS or "machine" not in group)):
        names = unequal or ["host"]
        raise UserError(
            f"the mean would pool rows that differ in {', '.join(names)} ({_values(group, names)}). Choose one "
            f"machine (`host`) with `query`, or rows of three or more equal machines: those with "
            f"the same {', '.join(EQUAL)}."
        )
    if "image" not in group and len({*zip(group["host"], group["pass_number"], strict=True)}) < len(group["host"]):
        raise UserError(
            "the mean would count a run twice: two configurations differ only in energy windows, or in work after the "
            "timed part. Choose one with `query`, for example by its `energy_windows` or `study`."
        )


def _check_shared_hosts(group: Rows, base: Rows) -> None:
    """Raise UserError if two configurations share hosts, but too few for a ratio over hosts."""
    first, second = set(group["host"]), set(base["host"])
    if first != second and 0 < len(first & second) < HOSTS:
        raise UserError(
            f"both configurations ran on {', '.join(sorted(first & second))}, and one of them also on other machines. "
            f"Choose one machine (`host`) with `query`, or rows of three or more that ran both."
        )


def _values(group: Rows, names: Sequence[str]) -> str:
    return "; ".join(f"{name}: {', '.join(map(str, pd.unique(group[name])[:4]))}" for name in names)


def _as_table(
    keys: pd.DataFrame, found: Sequence[Sequence[float]], metric: str, form: str, attrs: Mapping[str, Any]
) -> pd.DataFrame:
    """Return a row per group: its values of `by`, as the table had them, and its interval."""
    numbers = pd.DataFrame(found, columns=ESTIMATED).astype(_NUMBERS)
    table = pd.concat([keys.reset_index(drop=True), numbers], axis=1)
    table.attrs = {QUANTITY: metric if form == "level" else f"{form} of {metric}", **attrs}
    table[QUANTITY] = pd.Series(table.attrs[QUANTITY], table.index, dtype=object)
    return table


def _estimated(found: Interval | None, group: Rows) -> tuple[float, ...]:
    """Return an interval as a row of ESTIMATED; NaN without an interval."""
    counts = (0, len(set(group["host"]))) if found is None else (found.n, found.hosts)
    return *numbers_of(found), *counts
