"""A table of estimates: one row per configuration, one column per metric, failures with their reasons."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import pandas as pd

from labkit.errors import UserError, one_of
from workbook.results.columns import BASE, check_columns, unique
from workbook.results.missing import Missing
from workbook.show.frames import (
    INTERVAL,
    check_given,
    check_values,
    configuration,
    estimates,
    quantities_of,
    reasons_of,
    sorted_rows,
)
from workbook.show.templates import drawn
from workbook.words import (
    INVERTED_BELOW,
    MISSING,
    NAN,
    NOT_MEASURED,
    WIDE,
    amount,
    digits_of,
    factor,
    half_width,
    heading,
    in_order,
    is_missing,
    label,
    lacks_subject,
    metric_of,
    number,
    points,
)

if TYPE_CHECKING:
    from markupsafe import Markup

NOT_RUN = "not run"
NO_RATIO = "no comparison: the row is the base, or the row or its base has no value"
_PLAIN = (NOT_RUN, NOT_MEASURED, NO_RATIO, str(Missing()))  # reasons that a cell's tooltip alone tells
_MOST_NAMED = 3  # rows that a reason below a table names
# Marks after values, with what the caption says of them.
_FEW_RUNS = {"†": "one run", "‡": "two runs, with an interval wider than the value"}
EMPTY = "lk-empty"  # class of a table or figure without any value; the page leaves out the text that explains it
# The values of a column: a metric, a table of ratios or of differences in points, or a pair of a table and its form.
Values = str | Sequence[str] | Mapping[str, "str | pd.DataFrame | tuple[pd.DataFrame, str]"]
Intervals = Literal["wide", "all"]
RIVALS = ("mode", "side", "precision", "setting")  # columns whose values do the same work in other ways
CURRENCY = "currency"  # stands for the unit that a device file names


@dataclass(frozen=True)
class Table:
    """A table for display in a notebook: `frame` holds the texts as shown, `data` the numbers."""

    frame: pd.DataFrame
    data: pd.DataFrame
    caption: str = ""
    heads: int = 1  # number of leading columns that name the row
    best_row: int | None = None
    reasons: Mapping[tuple[int, str], str] = field(default_factory=dict)  # (row, heading) -> why the value is missing
    best_cells: frozenset[tuple[int, str]] = frozenset()  # (row, heading) of values that are clearly the best of a row

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        text = NOT_MEASURED if self.frame.empty else self.frame.to_string(index=False)
        names = self.frame.columns[self.heads :]
        texts = self.frame.iloc[:, self.heads].tolist() if len(names) else []
        rows_by_reason: dict[tuple[str, str], list[int]] = {}
        for (row, name), why in self.reasons.items():
            if why not in _PLAIN and not (name in names and texts[row] == why):  # such a row shows its reason
                rows_by_reason.setdefault((name, why), []).append(row)
        missing = [
            f"{self._named(rows)}, {name}: {why}" if name in names else f"{name}: {why}"
            for (name, why), rows in rows_by_reason.items()
        ]
        explained = {name for name, _ in rows_by_reason}
        missing += dict.fromkeys(
            f"no value of {name}" for _, name in self.reasons if name not in names and name not in explained
        )
        table = table_html(
            self.frame,
            self.caption,
            heads=self.heads,
            best_row=self.best_row,
            reasons=self.reasons,
            best_cells=self.best_cells,
        )
        folded = drawn("reasons", "Missing values", missing)
        return {"text/plain": f"{self.caption}\n{text}".strip(), "text/html": table + folded}

    def _named(self, rows: Sequence[int]) -> str:
        """Return the configurations of a few rows, or the number of many."""
        about = self.data.iloc[rows, : self.heads].to_dict("records")
        return "; ".join(map(configuration, about)) if len(rows) <= _MOST_NAMED else f"{len(rows)} rows"


@dataclass(frozen=True)
class _Column:
    """A column of values, in the order of the table's rows."""

    heading: str
    form: str  # a metric, `ratio`, `points` or `text`
    cells: pd.DataFrame  # value, low, high, reason
    rivals: str = ""  # the same for columns that compare the modes of a row


def table(
    data: pd.DataFrame,
    rows: str | Sequence[str],
    values: Values,
    *,
    across: str | None = None,
    best: str | None = None,
    caption: str = "",
    intervals: Intervals = "wide",
) -> Table:
    """Return a table with a row per combination of the columns `rows`; each value is an estimate over passes.

    `values` names metrics, or maps headings to metrics, text columns, or tables of `ratio` and `difference`. A pair of
    a table and "ratio", "points" or a metric sets the form; without a pair, a table with negative values is in points.
    A table's column `bound`, such as "at least ", stands before its values. A column without any value is left out,
    and its reasons are listed below the table.
    A metric is printed in the unit of its own heading (mJ, ms, GiB). Another heading gets this unit instead of J or s.
    `across` makes a column per value of another column, such as "mode". The best of the modes in a row is bold if its
    interval lies apart from those of the others. `best` is the metric whose best row is bold.
    `intervals`: "wide" (where wider than ±5 %) or "all". A value of a single run has a mark instead, and so has a value
    of two runs whose interval is wider than the value; the caption explains the marks. Raise UserError for other
    `intervals`, and where `estimate` does.

    >>> frame = pd.DataFrame({"batch": [64, 256], "value": [3_700.0, 14_733.0], "low": [2_400, 14_600],
    ...                       "high": [5_700, 14_900]})
    >>> table(frame, rows="batch", values={"images/s": (frame, "images_per_s")}).frame["images/s"].tolist()
    ['3,700 [2,400, 5,700]', '14,700']
    """
    one_of("choice of intervals", intervals, get_args(Intervals))
    check_columns(data, ())
    names = unique(rows)
    keys = _keys(data, names, values)
    columns = list(_columns(data, keys, names, values, across))
    cells: dict[str, list[str]] = {}
    amounts: dict[str, Any] = {}
    reasons: dict[tuple[int, str], str] = {}
    for column in columns:
        records = column.cells.to_dict("records")
        cells[column.heading] = [row.get("bound", "") + _text(row, column.form, intervals) for row in records]
        amounts[column.heading] = column.cells["value"].tolist()
        if column.form != "text":
            amounts |= {f"{column.heading} {end}": column.cells[end].tolist() for end in ("low", "high")}
        for place, row in enumerate(records):
            if cells[column.heading][place] == MISSING:
                reasons[place, column.heading] = row.get("reason") or NOT_RUN
    varying = [name for name in names if len(keys) < 2 or keys[name].nunique(dropna=False) > 1]
    frame = pd.DataFrame({heading(name): [label(name, value) for value in keys[name]] for name in varying} | cells)
    empty = [name for name, texts in cells.items() if {*texts} == {MISSING}]
    frame = frame.drop(columns=empty if len(empty) < len(columns) else [])
    for place in range(len(frame)):
        absent = [reasons.get((place, name), "") for name in frame.columns[len(varying) :]]
        if any(absent) and all(absent):  # a row without any value shows a reason, or dashes
            frame.iloc[place, len(varying)] = next((why for why in absent if why != NO_RATIO), MISSING)
    numbers = pd.DataFrame({name: keys[name].tolist() for name in varying} | amounts)
    ends = {text[-1:] for texts in cells.values() for text in texts}
    marks = ", ".join(f"{mark} {runs}" for mark, runs in _FEW_RUNS.items() if mark in ends)
    caption = "" if lacks_subject(caption) else caption
    if marks:
        caption = f"{caption}{'.' * (caption[-1:] not in ('', '.', ':'))} {marks}.".lstrip()
    row = _best_row(data, keys, names, across, best)
    return Table(frame, numbers, caption, len(varying), row, reasons, frozenset(_best_cells(columns)))


def _keys(data: pd.DataFrame, names: list[str], values: Values) -> pd.DataFrame:
    """Return the rows' keys in display order, from `data` or else from the first table in `values` that has `names`."""
    tables = [data, *(frame for _, frame, _ in _specified(values) if frame is not None)]
    source = next((frame for frame in tables if set(names) <= set(frame.columns)), None)
    if source is None and len(data):
        check_columns(data, names)
    distinct = pd.DataFrame(columns=names) if source is None else source[names].drop_duplicates()
    return sorted_rows(distinct, names).reset_index(drop=True)


def _specified(values: Values) -> Iterator[tuple[str, pd.DataFrame | None, str]]:
    """Yield (heading, table or None, form) for each requested column."""
    if not isinstance(values, Mapping):
        values = {heading(name): name for name in ([values] if isinstance(values, str) else values)}
    for title, form in values.items():
        if isinstance(form, str):
            yield title, None, form
        elif isinstance(form, tuple):
            yield title, form[0], form[1]
        else:
            check_given(form)
            yield title, form, "points" if len(form) and (form["value"] < 0).any() else "ratio"


def _columns(
    data: pd.DataFrame, keys: pd.DataFrame, names: list[str], values: Values, across: str | None
) -> Iterator[_Column]:
    specified = list(_specified(values))
    metrics = [form for _, given, form in specified if given is None]
    for title, given, form in specified:
        if given is not None:
            check_values(given, form)
            frame = given.assign(reason=NOT_MEASURED) if "reason" not in given else given
        elif form in data and not pd.api.types.is_numeric_dtype(data[form]) and len(data):
            frame, form = _texts(data, form, unique(names, across)), "text"
        else:
            frame = estimates(data, form, unique(names, across))
        by = across if across in frame else None
        spread = in_order(frame[by], by) if by else []
        if len(spread) < 2 and not (spread and given is None):
            cells = _explained(_beside(keys, frame, names), keys, data, given, form)
            yield _Column(_with_unit(title, form), form, cells)
            continue
        for value in spread:
            cells = _explained(_beside(keys, frame[frame[by] == value], names), keys, data, given, form)
            spread_title = (
                label(str(by), value) if given is None and len(metrics) == 1 else f"{title}, {label(str(by), value)}"
            )
            yield _Column(_with_unit(spread_title, form), form, cells, title if by in RIVALS else "")


def _explained(
    cells: pd.DataFrame, keys: pd.DataFrame, data: pd.DataFrame, given: pd.DataFrame | None, form: str
) -> pd.DataFrame:
    """Return the cells of a given table with the reasons that the table lacks: those of the rows of `data`.

    The row that all others are compared with has no ratio, even if some of its runs were withdrawn. If it has no value,
    its own reason stays.
    """
    names = list(keys.columns)
    if given is None or data.empty or not set(names) <= set(data.columns):
        return cells
    comparison, _, metric = "".join(quantities_of(given)[:1]).rpartition(" of ")
    reasons = keys.merge(reasons_of(data, names, metric or form), on=names, how="left")["reason"]
    base = given.attrs.get(BASE, {})
    if base and set(base) <= set(names) and metric in data:
        measured = keys.merge(data.dropna(subset=[metric])[names].drop_duplicates(), how="left", indicator=True)
        is_base = (keys[list(base)] == pd.Series(base)).all(axis=1)
        reasons = reasons.mask(is_base & (measured["_merge"] == "both"), NO_RATIO)
    plain = cells["reason"].isin(["", *_PLAIN])
    unpaired = cells["reason"] if not metric else NO_RATIO if comparison else NOT_MEASURED
    return cells.assign(reason=cells["reason"].mask(plain, reasons.mask(reasons.isin(_PLAIN), unpaired)))


def _with_unit(title: str, form: str) -> str:
    """Return a heading with the unit of its values, unless each value has it. A unit in another scale is replaced.

    >>> [_with_unit(title, "energy_per_image_j") for title in ("energy", "mJ per image", "J", "energy, J")]
    ['energy, mJ', 'mJ per image', 'mJ', 'energy, mJ']
    """
    unit, of = ("points", "points") if form == "points" else (metric_of(form).unit, metric_of(form).si_unit)
    if unit in ("", "x", "%", CURRENCY):
        return title
    told = rf"(?<![\w/'])({re.escape(unit)}|([kKMGTmµn]i?)?{re.escape(of)})(?![\w/])"
    return re.sub(told, unit, title) if re.search(told, title) else f"{title}, {unit}"


def _texts(data: pd.DataFrame, column: str, by: list[str]) -> pd.DataFrame:
    """Return the texts of a column, one row per group; different texts of a group are joined."""
    groups = data.groupby(by, sort=False, observed=True, dropna=False)[column]
    joined = groups.apply(lambda cells: ", ".join(label(column, cell) for cell in in_order(cells, column)) or None)
    return joined.rename("value").reset_index().assign(low=NAN, high=NAN).merge(reasons_of(data, by, column), on=by)


def _beside(keys: pd.DataFrame, frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return a table's values for each row, joined on the common columns.

    Raise UserError if a row has several values, or if several rows would have the same value.
    """
    shared = [name for name in names if name in frame]
    frame = frame.assign(bound=frame.get("bound", ""))
    columns = [name for name in (*INTERVAL, "passes", "reason", "bound") if name in frame]
    if not shared or keys.empty or frame.empty:
        filler = pd.DataFrame({name: [NAN] * len(keys) for name in INTERVAL})
        return filler.assign(reason=NOT_MEASURED if frame.empty else NOT_RUN)
    if keys.duplicated(shared).any():
        lacking = ", ".join(name for name in names if name not in frame)
        raise UserError(
            f"a table gives one value to rows that differ in {lacking}: add this to the `by` of its values."
        )
    joined = keys.merge(frame[[*shared, *columns]], on=shared, how="left")
    if len(joined) != len(keys):
        raise UserError(
            f"a table of values has several rows for the same {', '.join(shared)}: choose one with `query`."
        )
    return joined.reindex(columns=[*INTERVAL, "passes", "reason", "bound"]).fillna({"reason": NOT_RUN, "bound": ""})


def _text(row: Mapping[str, Any], form: str, intervals: Intervals) -> str:
    value, low, high = (row[name] for name in INTERVAL)
    if is_missing(value):
        return MISSING
    if form == "text":
        return str(value)
    if form == "points":
        point, *ends = (points(share, value, low, high) for share in (value, low, high))
    else:
        digits = digits_of(value, low, high)
        point, *ends = _amount(value, form, digits), *(_end(end, value, form, digits) for end in (low, high))
    wide = form == "points" or half_width(value, low, high) > WIDE
    if not math.isfinite(high - low):
        return f"{point}†" if intervals == "all" or row.get("passes") == 1 else point
    if intervals == "wide" and not wide:
        return point
    if row.get("passes") == 2 and half_width(value, low, high) > 1:  # Student's t of two runs spans orders of magnitude
        return f"{point}‡"
    return f"{point} [{ends[0]}, {ends[1]}]"


def _end(end: float, value: float, form: str, digits: int) -> str:
    """Return an end of a range as text. A ratio's ends are inverted beside an inverted ratio: 1/2.4 [1/2.8, 1/2.1]."""
    if form == "ratio":
        return f"1/{number(1 / end, digits)}" if 0 < value < INVERTED_BELOW and end else number(end, digits)
    return _amount(end, form, digits).removesuffix(" %").removesuffix("x")


def _amount(value: float, form: str, digits: int) -> str:
    return factor(value, digits) if form == "ratio" else amount(value, form, digits)


def _best_row(
    data: pd.DataFrame, keys: pd.DataFrame, names: list[str], across: str | None, best: str | None
) -> int | None:
    """Return the row with the best value of a metric; None without values, or if no direction is better."""
    if best is None or keys.empty or metric_of(best).better == "neither":
        return None
    estimated = estimates(data, best, unique(names, across)).dropna(subset=["value"])
    if estimated.empty:
        return None
    levels = estimated["value"]
    winner = estimated.loc[levels.idxmax() if metric_of(best).better == "more" else levels.idxmin()]
    return int((keys == winner[names]).all(axis=1).to_numpy().argmax())


def _best_cells(columns: Sequence[_Column]) -> Iterator[tuple[int, str]]:
    """Yield row and heading of each value that is better than those of all rivals, beyond their intervals."""
    for rivals in {column.rivals: None for column in columns if column.rivals}:
        of = [column for column in columns if column.rivals == rivals]
        better = metric_of(of[0].form).better
        named = [column.cells[[*INTERVAL]].assign(name=column.heading) for column in of if better != "neither"]
        for place, row in pd.concat(named).dropna(subset=["value"]).groupby(level=0) if named else ():
            ends = row.assign(low=row["low"].fillna(row["value"]), high=row["high"].fillna(row["value"]))
            ends = ends.sort_values("value", ascending=better == "less")
            best, others = ends.iloc[0], ends.iloc[1:]
            is_apart = best["low"] > others["high"].max() if better == "more" else best["high"] < others["low"].min()
            if len(others) and is_apart:
                yield int(place), str(best["name"])


def table_html(
    frame: pd.DataFrame,
    caption: str = "",
    *,
    name: str = "table",
    kind: str = "",
    heads: int = 1,
    best_row: int | None = None,
    reasons: Mapping[tuple[int, str], str] = MappingProxyType({}),
    best_cells: Set[tuple[int, str]] = frozenset(),
) -> Markup:
    """Return a frame of texts as an HTML table, escaped except `Markup`. The first `heads` columns name the row.

    Without a caption, `name` is the table's label for screen readers. `kind` is a CSS class. A row without any value
    has its reason in one cell; a single missing value has its reason as a tooltip.
    """
    texts = [
        [cell if isinstance(cell, str) else label("", cell) for cell in row] for row in frame.itertuples(index=False)
    ]
    absent = [[reasons.get((place, column), "") for column in frame.columns[heads:]] for place in range(len(frame))]
    is_empty = frame.empty or (bool(reasons) and all(map(all, absent)))
    classes = " ".join(filter(None, [kind, EMPTY if is_empty else ""]))
    columns = list(map(str, frame.columns))
    best = [[(place, column) in best_cells for column in columns[heads:]] for place in range(len(frame))]
    return drawn("table", columns, texts, caption, name, classes, heads, absent, best_row, best)
