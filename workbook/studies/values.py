"""Single values out of estimates, with a text where nothing was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from labkit.errors import UserError
from workbook.results import is_report
from workbook.results.columns import check_columns, check_kind, listed
from workbook.words import (
    INVERTED_BELOW,
    NAN,
    NOT_MEASURED,
    VAGUE,
    VAGUE_DIGITS,
    digits_of,
    half_width,
    label,
    number,
    points,
)

NO_DIFFERENCE = "no clear difference"


def value_of(estimates: pd.DataFrame, **where: Any) -> float:
    """Return the value of the row of an estimate with these column values; NaN without such a row, or a value in it.

    Raise UserError for a missing column, and for a text as a value of a column of numbers.

    >>> rates = pd.DataFrame({"mode": ["strict FP32"], "batch": [64], "value": [10.0]})
    >>> value_of(rates, mode="strict FP32", batch=64), value_of(rates, mode="CUDA graph")
    (10.0, nan)
    """
    return _interval(estimates, where)[0]


def _interval(estimates: pd.DataFrame, where: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the value of the first row with these column values, and the ends of its interval; NaN if missing."""
    rows = estimates
    check_columns(estimates, [*where, "value"])
    for name, wanted in where.items():
        check_kind(estimates, name, wanted)
        rows = rows[rows[name] == wanted]
    first = rows.head(1).reindex(columns=["value", "low", "high"]).astype(float)  # None becomes NaN
    value, low, high = first.iloc[0] if len(first) else (NAN, NAN, NAN)
    return float(value), float(low), float(high)


def one_of_column(frame: pd.DataFrame, column: str, *wanted: Any) -> Any:
    """Return the first wanted value that a column holds, in its spelling or in that of pages, as the column spells it.

    Where the column holds none of them, raise UserError; in a report, return the first, which the page calls "not
    measured". Where none is wanted, return the column's first value, None for an empty column.

    >>> frame = pd.DataFrame({"model": ["resnet50", "vgg16"]})
    >>> one_of_column(frame, "model", "VGG-16"), one_of_column(frame, "model", "resnet50")
    ('vgg16', 'resnet50')
    """
    check_columns(frame, [column])
    held = list(dict.fromkeys(frame[column].dropna()))
    named = [one for value in wanted or held for one in held if value in (one, label(column, one))]
    if held and not named and not is_report():
        raise UserError(f"no row has {column}={wanted[0]!r}; here it is {listed(held)}.")
    return [*named, *wanted, None][0]


def share(part: float, whole: float) -> float:
    """Return `part / whole`; NaN where that is not measured, or where the whole is 0.

    >>> share(1.0, 4.0), share(1.0, 0.0), share(float("nan"), 4.0)
    (0.25, nan, nan)
    """
    return float(part) / float(whole) if whole and not pd.isna(whole) else NAN


def text_of(value: float, unit: str = "", digits: int = 3) -> str:
    """Return a value with its unit, or "not measured" for NaN. Small `times` are inverted, as in tables.

    >>> text_of(1234.5, "images/s"), text_of(0.125, "times"), text_of(float("nan"), "images/s")
    ('1,230 images/s', '1/8.00', 'not measured')
    """
    if unit == "times" and 0 < value < INVERTED_BELOW:
        return f"1/{number(1 / value, digits)}"
    return NOT_MEASURED if pd.isna(value) else f"{number(value, digits)} {unit}".strip()


def if_measured(*parts: str, joined: str = " ") -> str:
    """Return the sentences or parts of one, `joined`, without those that say "not measured".

    >>> if_measured("It takes 3 ms.", "It loses not measured."), if_measured(", not measured strict FP32")
    ('It takes 3 ms.', '')
    """
    return joined.join(part for part in parts if part and NOT_MEASURED not in part)


def told(estimates: pd.DataFrame, unit: str = "", *, scale: float = 1.0, **where: Any) -> str:
    """Return the value of one row for a sentence.

    It has "about" and 2 digits if its 95 % interval is wider than ±10 %, and of a single run, which has no interval.
    Two runs are named, because they decide nothing.

    >>> gains = pd.DataFrame({"model": ["resnet50"], "value": [4.02], "low": [2.0], "high": [8.1], "passes": [2]})
    >>> told(gains, "times", model="resnet50"), told(gains, "times", model="vgg16")
    ('about 4.0 times (2 runs)', 'not measured')
    """
    value, low, high = (scale * end for end in _interval(estimates, where))
    if pd.isna(value):
        return NOT_MEASURED
    vague = pd.isna(high - low) or digits_of(value, low, high) == VAGUE_DIGITS
    text = f"about {text_of(value, unit, VAGUE_DIGITS)}" if vague else text_of(value, unit)
    return f"{text} (2 runs)" if _of_two_runs(estimates, where) else text


def _of_two_runs(estimates: pd.DataFrame, where: Mapping[str, Any]) -> bool:
    runs = estimates.loc[(estimates[[*where]] == pd.Series(where)).all(axis=1)].get("passes")
    return runs is not None and [*runs.head(1)] == [2]


def times(ratios: pd.DataFrame, **where: Any) -> str:
    """Return the ratio of one row for a sentence; "no clear difference" if its 95 % interval contains 1.

    Two runs decide nothing, so their ratio is told.

    >>> gains = pd.DataFrame({"batch": [1, 64], "value": [4.0, 1.1], "low": [3.9, 0.9], "high": [4.1, 1.3]})
    >>> times(gains, batch=1), times(gains, batch=64), times(gains, batch=256)
    ('4.00 times', 'no clear difference', 'not measured')
    >>> times(gains.assign(passes=2), batch=64)
    'about 1.1 times (2 runs)'
    """
    _, low, high = _interval(ratios, where)
    contains_1 = low <= 1 <= high and not _of_two_runs(ratios, where)
    return NO_DIFFERENCE if contains_1 else told(ratios, "times", **where)


def as_fast(ratios: pd.DataFrame, reference: str, **where: Any) -> str:
    """Return the ratio of one row's speed over a reference's, as the end of a sentence.

    >>> gains = pd.DataFrame({"batch": [1, 64], "value": [4.0, 1.1], "low": [3.9, 0.9], "high": [4.1, 1.3]})
    >>> as_fast(gains, "FP32", batch=1), as_fast(gains, "FP32", batch=64)
    ('4.00 times as fast as FP32', 'not clearly faster or slower than FP32')
    """
    text, few, _ = times(ratios, **where).partition(" (2 runs)")
    said = "not clearly faster or slower than" if text == NO_DIFFERENCE else f"{text} as fast as"
    return f"{said} {reference}{few}"


def as_long(ratios: pd.DataFrame, reference: str, **where: Any) -> str:
    """Return the ratio of one row's time over a reference's, as the end of a sentence.

    >>> ratios = pd.DataFrame({"batch": [1, 64], "value": [4.0, 1.1], "low": [3.9, 0.9], "high": [4.1, 1.3]})
    >>> as_long(ratios, "one job", batch=1), as_long(ratios, "one job", batch=64)
    ('4.00 times as long as one job', 'not clearly longer or shorter than one job')
    """
    text = as_fast(ratios, reference, **where)
    return text.replace("as fast as", "as long as").replace("faster or slower", "longer or shorter")


def range_of(estimates: pd.DataFrame, unit: str = "", **where: Any) -> str:
    """Return the 95 % interval of the row with these column values; the value of a single run, which has no interval.

    Values in "points" are differences of shares.

    >>> lost = pd.DataFrame({"model": ["vgg16"], "value": [0.001], "low": [-0.0002], "high": [0.0022]})
    >>> range_of(lost, "points", model="vgg16"), range_of(lost.assign(low=0.95, high=1.32), "times", model="vgg16")
    ('−0.02 to +0.22 points', '0.95 to 1.3 times')
    >>> range_of(lost.assign(low=-0.1413, high=-0.1387), "points", model="vgg16")
    '−14.1 to −13.9 points'
    """
    value, low, high = _interval(estimates, where)

    def written(end: float, *beside: float) -> str:
        return points(end, *beside) if unit == "points" else text_of(end, "times", VAGUE_DIGITS).removesuffix(" times")

    if pd.isna(value):
        return NOT_MEASURED
    if pd.isna(low) or pd.isna(high):
        return f"{written(value)} {unit}".strip() + " (one run)"
    return f"{' to '.join(dict.fromkeys([written(low, low, high), written(high, low, high)]))} {unit}".strip()


def span_of(values: pd.Series, unit: str = "", digits: int = 3) -> str:
    """Return the lowest and the highest value for a sentence; one of them if both read the same.

    >>> span_of(pd.Series([1.2, 2.5, 3.1]), "times"), span_of(pd.Series([4.0]), "s"), span_of(pd.Series([]), "s")
    ('1.20 to 3.10 times', '4.00 s', 'not measured')
    """
    low, high = (text_of(end, unit, digits) for end in (values.min(), values.max()))
    return high if low == high else f"{low.removesuffix(f' {unit}')} to {high}"


def told_span(estimates: pd.DataFrame, unit: str = "", scale: float = 1.0) -> str:
    """Return the lowest and the highest value of several rows for a sentence, with 2 digits.

    It has "about" if the 95 % interval of a row is missing or wider than ±10 %. Printed values, without the columns
    `low` and `high`, have none.

    >>> told_span(pd.DataFrame({"value": [0.0032, 0.0036], "low": [0.0031, 0.003], "high": [0.0033, 0.004]}), "mJ", 1e3)
    'about 3.2 to 3.6 mJ'
    """
    rows = estimates.dropna(subset="value").to_dict("records") if "low" in estimates else []
    about = "" if all(half_width(row["value"], row["low"], row["high"]) <= VAGUE for row in rows) else "about "
    return about + span_of(scale * estimates["value"], unit, VAGUE_DIGITS)


def largest(estimates: pd.DataFrame) -> pd.Series:
    """Return the row with the largest value; without values, a row with NaN as numbers and "not measured" as texts.

    >>> largest(pd.DataFrame({"mode": ["strict FP32", "CUDA graph"], "value": [1.0, 2.0]}))["mode"]
    'CUDA graph'
    """
    return _extreme(estimates, "idxmax")


def smallest(estimates: pd.DataFrame) -> pd.Series:
    """Return the row with the smallest value; without values, a row as `largest` returns it.

    >>> smallest(pd.DataFrame({"mode": ["strict FP32"], "value": [1.0]}).iloc[:0])["mode"]
    'not measured'
    """
    return _extreme(estimates, "idxmin")


def _extreme(estimates: pd.DataFrame, place: str) -> pd.Series:
    measured = estimates.dropna(subset=["value"])
    if len(measured):
        return measured.loc[getattr(measured["value"], place)()]
    numbers = estimates.select_dtypes("number").columns
    return pd.Series({name: NAN if name in numbers else NOT_MEASURED for name in estimates.columns})
