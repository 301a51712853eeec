"""The arithmetic on tables of results: a value with its 95 % interval, ratios and differences.

`data` is a table with one row per trial, host and pass, as `Results.frame()` gives it. Each function returns one row
per group with the columns `value`, `low`, `high`, `passes` and `hosts`. `low` and `high` are NaN with a single pass.

Passes are fresh processes, so their values are independent (Georges et al., OOPSLA'07; Hoefler & Belli, SC'15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.errors import UserError
from labkit.registry import METRICS
from labkit.results.columns import ASKED_AFTER, RECORDS, WHAT_RAN, check_columns
from labkit.statistics import (
    Interval,
    difference_interval,
    linear_interval,
    log_interval,
    paired_share_difference,
    paired_share_ratio,
    ratio_interval,
    share_interval,
    unpaired_difference,
    unpaired_ratio,
)

ESTIMATED = ["value", "low", "high", "passes", "hosts"]
_NUMBERS = {"value": float, "low": float, "high": float, "passes": int, "hosts": int}  # of an empty table too
# The columns that tell configurations apart. Fields that apply after the timed part of a trial do not.
IDENTITY = [*(name for name in WHAT_RAN if name not in ASKED_AFTER), *RECORDS]
SHOWN = ("image_px", "framework")  # two rows that differ here answer different questions, so a row must say it
OWN_PROCESSES = ("framework", "devices")  # trials that differ here never run in one process: they are paired by pass
Passes = dict[tuple[str, int], float]  # (host, pass number) -> value
Form = Callable[[pd.DataFrame, pd.DataFrame, str], Interval | None]


def estimate(data: pd.DataFrame, metric: str, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return the mean of a metric over passes with its 95 % interval, one row per group of `by`.

    Positive values have a geometric mean with Student's t on the logarithm. Shares, and values of 0 or less, have an
    arithmetic mean. A group without a value is left out. Raise UserError for a missing column, and if a group mixes
    configurations: the message names the columns that `by` lacks. Raise it too if the groups differ in size of image or
    framework, and no column of `by` says so.

    >>> import labkit
    >>> frame = labkit.load("h200", "batch_size").frame().query("model == 'vgg16' and image_px == 32")
    >>> labkit.estimate(frame, "images_per_s", by=["mode", "batch"])  # doctest: +SKIP
    """
    check_columns(data, [metric, *by])
    rows, measured = [], data.dropna(subset=[metric])
    _check_side_by_side(measured, by)
    varying = _varying(measured, by)
    for key, group in _groups(measured, by):
        _check_one_configuration(group, varying)
        rows.append({**key, **_estimated(interval_of(_passes(group, metric).values(), metric), group)})
    return _as_table(rows, data, by)


def ratio(data: pd.DataFrame, metric: str, *, over: Mapping[str, Any], by: Sequence[str]) -> pd.DataFrame:
    """Return a metric divided by that of the rows with the values of `over`, one row per group of `by`.

    Two groups are compared if they agree in all other columns of `by`. If both ran in the same passes of a study and
    host, the ratio is formed within each pass, without passes that a second process finished. Else it is unpaired
    (Welch 1947, on the logarithm). Raise UserError as
    `estimate` does.

    >>> import labkit
    >>> frame = labkit.load("h200", "batch_size").frame().query("model == 'vgg16' and image_px == 32")
    >>> labkit.ratio(frame, "images_per_s", over={"mode": "baseline"}, by=["mode", "batch"])  # doctest: +SKIP
    """
    return _compared(data, metric, over, by, _ratio)


def difference(data: pd.DataFrame, metric: str, *, over: Mapping[str, Any], by: Sequence[str]) -> pd.DataFrame:
    """Return a metric minus that of the rows with the values of `over`, one row per group of `by`.

    Groups are paired as in `ratio`. The accuracies `top1` and `top5` of `Results.hits()` are compared image by image:
    half an answer is added to each of the four cells (Agresti & Min 2005, Statistics in Medicine 24:729-740).
    """
    return _compared(data, metric, over, by, _difference)


def interval_of(values: Sequence[float] | Any, metric: str) -> Interval | None:
    """Return the interval of a metric's values over passes; None without a value."""
    numbers = list(values)
    if not numbers:
        return None
    about = METRICS.get(metric)
    if about is not None and about.share and min(numbers) >= 0 and max(numbers) <= 1:
        return share_interval(numbers)
    return log_interval(numbers) if min(numbers) > 0 else linear_interval(numbers)


def ratio_of_passes(above: Mapping[Any, float], below: Mapping[Any, float], *, paired: bool) -> Interval | None:
    """Return the ratio of two configurations from their values by pass; None without values, or if one is 0 or less."""
    if not above or not below or min(*above.values(), *below.values()) <= 0:
        return None
    return ratio_interval(above, below) if paired else unpaired_ratio(list(above.values()), list(below.values()))


def difference_of_passes(above: Mapping[Any, float], below: Mapping[Any, float], *, paired: bool) -> Interval | None:
    """Return the difference of two configurations from their values by pass; None if a side is empty."""
    if not above or not below:
        return None
    if paired:
        return difference_interval(above, below)
    return unpaired_difference(list(above.values()), list(below.values()))


def _compared(data: pd.DataFrame, metric: str, over: Mapping[str, Any], by: Sequence[str], form: Form) -> pd.DataFrame:
    check_columns(data, [metric, *by, *over])
    shared = [name for name in by if name not in over]
    measured = data.dropna(subset=[metric])
    _check_side_by_side(measured, by)
    is_base = pd.Series(True, index=measured.index)
    for name, value in over.items():
        is_base &= measured[name] == value
    varying, varying_base = _varying(measured, by), _varying(measured, [*shared, *over])
    bases = {tuple(key.values()): group for key, group in _groups(measured[is_base], shared)}
    rows = []
    for key, group in _groups(measured[~is_base], by):
        base = bases.get(tuple(key[name] for name in shared))
        if base is None:
            continue
        _check_one_configuration(group, varying)
        _check_one_configuration(base, varying_base)
        rows.append({**key, **_estimated(form(group, base, metric), group)})
    return _as_table(rows, data, by)


def _ratio(above: pd.DataFrame, below: pd.DataFrame, metric: str) -> Interval | None:
    if "image" in above:
        return paired_share_ratio(*_answers(above, below, metric))
    paired = _same_records(above, below)
    first, second = (
        _in_one_process(above, below, metric) if paired else (_passes(above, metric), _passes(below, metric))
    )
    return ratio_of_passes(first, second, paired=paired)


def _difference(above: pd.DataFrame, below: pd.DataFrame, metric: str) -> Interval | None:
    if "image" in above:
        return paired_share_difference(*_answers(above, below, metric))
    paired = _same_records(above, below)
    first, second = (
        _in_one_process(above, below, metric) if paired else (_passes(above, metric), _passes(below, metric))
    )
    return difference_of_passes(first, second, paired=paired)


def _answers(above: pd.DataFrame, below: pd.DataFrame, metric: str) -> tuple[Any, Any]:
    """Return which images each configuration classified correctly, in the same order, in their first common pass."""
    shared = sorted(set(above["pass_number"]) & set(below["pass_number"]))
    if not shared:
        raise UserError("no pass scored the images of both configurations: compare configurations of one study.")
    sides = [side[side["pass_number"] == shared[0]].set_index("image")[metric].astype(bool) for side in (above, below)]
    first, second = sides[0].align(sides[1], join="inner")
    return first.to_numpy(), second.to_numpy()


def _same_records(above: pd.DataFrame, below: pd.DataFrame) -> bool:
    """Return whether both sides ran in the same passes: those of one profile, study and host."""
    return all(set(above[name]) == set(below[name]) and above[name].nunique() == 1 for name in RECORDS if name in above)


def sharing_process(above: Mapping[Any, str], below: Mapping[Any, str]) -> set[Any]:
    """Return the passes in which two configurations ran in one process, from their processes by pass.

    A pass that was interrupted goes on in another process. Without any shared process, return all common passes.
    """
    common = set(above) & set(below)
    return {number for number in common if above[number] == below[number]} or common


def _in_one_process(above: pd.DataFrame, below: pd.DataFrame, metric: str) -> tuple[Passes, Passes]:
    first, second = _passes(above, metric), _passes(below, metric)
    needed = ["process", *OWN_PROCESSES]
    alike = set(needed) <= set(above) & set(below) and all(
        set(above[name]) == set(below[name]) for name in OWN_PROCESSES
    )
    if not alike:
        return first, second
    keys = [dict(zip(zip(d["host"], d["pass_number"], strict=True), d["process"], strict=True)) for d in (above, below)]
    shared = sharing_process(*keys)
    return tuple({key: value for key, value in values.items() if key in shared} for values in (first, second))  # type: ignore[return-value]


def _passes(group: pd.DataFrame, metric: str) -> Passes:
    hosts = group["host"] if "host" in group else [""] * len(group)
    return dict(zip(zip(hosts, group["pass_number"], strict=True), group[metric].astype(float), strict=True))


def _groups(data: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    if not by:
        if len(data):
            yield {}, data
        return
    for key, group in data.groupby(list(by), sort=False, observed=True, dropna=False):
        yield dict(zip(by, key, strict=True)), group


def _varying(data: pd.DataFrame, by: Sequence[str]) -> list[str]:
    """Return the columns of `IDENTITY` that are not in `by` and have several values."""
    return [name for name in IDENTITY if name in data and name not in by and data[name].nunique(dropna=False) > 1]


def _check_side_by_side(data: pd.DataFrame, by: Sequence[str]) -> None:
    """Raise UserError if groups differ in `SHOWN` without a column for it. A column of the caller's own may say it."""
    if not set(by) <= {*WHAT_RAN, *RECORDS}:
        return
    hidden = [name for name in SHOWN if name in data and name not in by and data[name].nunique() > 1]
    if by and hidden:
        values = "; ".join(f"{name}: {', '.join(map(str, data[name].unique()[:4]))}" for name in hidden)
        raise UserError(
            f"rows that differ in {', '.join(hidden)} ({values}) would stand side by side without saying so. Add these "
            f"columns to `by`, or choose one value of each with `query`."
        )


def _check_one_configuration(group: pd.DataFrame, varying: Sequence[str]) -> None:
    """Raise UserError if rows of a group differ in a column of `varying`, or if two rows are of the same pass."""
    mixed = [name for name in varying if group[name].nunique(dropna=False) > 1]
    if mixed:
        values = "; ".join(f"{name}: {', '.join(map(str, group[name].unique()[:4]))}" for name in mixed)
        raise UserError(
            f"the mean would mix configurations that differ in {', '.join(mixed)} ({values}). Add these columns to "
            f"`by`, or choose one value of each with `query`."
        )
    if "image" not in group and group[["host", "pass_number"]].duplicated().any():
        raise UserError(
            "the mean would count a pass twice: two trials differ only in work after the timed part. Choose one with "
            "`query`, for example by its `study`."
        )


def _as_table(rows: list[dict[str, Any]], data: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the rows of an estimate as a table with the column types of `data`, even without rows."""
    return pd.DataFrame(rows, columns=[*by, *ESTIMATED]).astype(data.dtypes[list(by)].to_dict() | _NUMBERS)


def _estimated(found: Interval | None, group: pd.DataFrame) -> dict[str, Any]:
    """Return an interval as columns of a row; NaN without an interval."""
    nan = float("nan")
    if found is None:
        return {"value": nan, "low": nan, "high": nan, "passes": 0, "hosts": group["host"].nunique()}
    low, high = (nan if end is None else end for end in (found.low, found.high))
    return {"value": found.point, "low": low, "high": high, "passes": found.n, "hosts": group["host"].nunique()}
