"""Plots with a row per configuration: dots with intervals, stacked bars."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from labkit.errors import unknown
from workbook.results.columns import single, unique
from workbook.show.draw import (
    HATCH,
    LINES,
    Look,
    Note,
    axis_title,
    fit,
    fit_texts,
    legend,
    looks,
    may_be_log,
    nothing,
    panels,
    place_notes,
    reach,
    value_axis,
)
from workbook.show.figure import SERIES, SMALL_PT, Figure, colour, font_pt, slug, styled
from workbook.show.frames import check_given, check_values, estimates, interval_note, why_nothing
from workbook.words import NAN, amount, digits_of, in_order, label, metric_of, phrase

Order = Literal["ascending", "descending"]
_ROW_IN, _LINE_IN = 0.22, 0.14  # height of a row, and of each line of its name
_DETAIL_CHARACTERS = 24  # of a line of a name
_NO_BREAK = "\xa0"
_DODGE = 0.2  # rows between two dots of a row that are no pair
_ENDS_IN = 0.75  # height of the axis below and the legend above
_LOG_FROM = 30.0  # largest over smallest value above which dots have a log axis
_NAME_CHARACTERS = 32  # of a line of the first part of a name, and of a part that stays on its line
_REASON_CHARACTERS, _ROW_CHARACTERS = 38, 52  # of a line of a reason at most, and with the name of its row
_TICKS = ("|", "x", "+", "*")  # markers of reference values, in turn
_TICK_PT = {"|": 16, "x": 7, "+": 9, "*": 8}
_BESIDE_DOT = [
    (0.0, 5.0, "center", "bottom"),
    (4.0, 5.0, "right", "bottom"),
    (-4.0, 5.0, "left", "bottom"),
    (0.0, -5.0, "center", "top"),
    (-6.0, 5.0, "right", "bottom"),
    (6.0, 5.0, "left", "bottom"),
]


@dataclass(frozen=True)
class _Rows:
    """Estimates of a metric, with a row of the plot per combination of the columns `names`."""

    frame: pd.DataFrame
    names: list[str]
    metric: str
    hue: str | None

    @property
    def keys(self) -> list[dict[str, Any]]:
        """The columns and values of each row of the plot."""
        keys: list[dict[str, Any]] = self.frame[self.names].drop_duplicates().to_dict("records")
        return keys

    def at(self, key: Mapping[str, Any], frame: pd.DataFrame | None = None) -> pd.DataFrame:
        """Return the estimates of a row of the plot, or the rows of `frame` that match it in their common columns."""
        frame = self.frame if frame is None else frame
        chosen = np.ones(len(frame), dtype=bool)
        for name in set(key) & set(frame.columns):
            same = frame[name].isna() if pd.isna(key[name]) else frame[name] == key[name]
            chosen &= same.to_numpy(dtype=bool)
        return frame[chosen]

    @property
    def texts(self) -> list[list[str]]:
        """The lines of each row's name."""
        first, *others = (name for name in self.names if name not in self._of_all)
        details = [", ".join(_kept_together(phrase(name, key[name])) for name in others) for key in self.keys]
        lines = [textwrap.wrap(text, _DETAIL_CHARACTERS, break_long_words=False) for text in details]
        named = [textwrap.wrap(phrase(first, key[first]), _NAME_CHARACTERS) or [""] for key in self.keys]
        return [[*name, *(line.replace(_NO_BREAK, " ") for line in of)] for name, of in zip(named, lines, strict=True)]

    @property
    def _of_all(self) -> list[str]:
        """The columns after the first with the same value in each of several rows: it is written once, above them."""
        return [name for name in self.names[1:] if len(self.keys) > 1 and self.frame[name].nunique(dropna=False) == 1]

    @property
    def lines(self) -> int:
        """The most lines of a row's name."""
        return max(map(len, self.texts))

    def axes(self, ax: Any) -> tuple[Any, Any]:
        """Return a drawing and its axes, with the names of the rows at the left and the first row on top."""
        height_in = ((_ROW_IN + _LINE_IN * self.lines) * len(self.keys) + _ENDS_IN) * font_pt() / SMALL_PT
        drawing, (axes, *_) = panels(ax, height_in=height_in)
        axes.set_ylim(len(self.keys) - 0.4, -0.6)
        axes.set_yticks([])
        axes.grid(visible=False, axis="y")
        if self._of_all:
            text = ", ".join(phrase(name, self.keys[0][name]) for name in self._of_all)
            _write(axes, (0, -0.6), (-8, 0), text, ha="right", va="bottom", color=colour("soft"))
        for place, texts in enumerate(self.texts):
            for line, text in enumerate(texts):  # one text per line, so that each ends at the axis in any font
                up = ((len(texts) - 1) / 2 - line) * (font_pt() + 2)
                _write(axes, (0, place), (-8, up), text, ha="right", color=colour("soft" if line else "ink"))
        return drawing, axes

    def write_reason(self, axes: Any, place: float, reason: str) -> None:
        """Write the reason in place of a missing value, in as many lines as a row's name has, and at most two."""
        longest = max(len(text) for texts in self.texts for text in texts)
        characters = min(_REASON_CHARACTERS, max(_ROW_CHARACTERS - longest, _ROW_CHARACTERS - _NAME_CHARACTERS))
        wrapped = textwrap.wrap(reason, characters, max_lines=min(self.lines, 2), placeholder=" …")
        _write(axes, (0, place), (4, 0), "\n".join(wrapped), color=colour("soft"), style="italic")

    def figure(self, drawing: Any, kind: str, name: str, title: str, caption: str) -> Figure:
        """Return the figure. The alternative text names the kind of plot, the metric and the columns."""
        alt = f"{title or kind}: {axis_title(self.metric)} by {', '.join(self.names)}"
        return Figure(drawing, name or slug(self.metric, *self.names), alt, self.frame, title, caption, self.metric)


def dots(
    data: pd.DataFrame,
    *,
    y: str | Sequence[str],
    x: str,
    hue: str | None = None,
    sort: Order | None = None,
    log: bool | None = None,
    pair: bool = True,
    numbers: bool = True,
    ratio: pd.DataFrame | tuple[pd.DataFrame, str] | None = None,
    ticks: pd.DataFrame | None = None,
    limits: tuple[float, float] | None = None,
    colours: Mapping[Any, str] | None = None,
    reasons: bool = True,
    title: str = "",
    caption: str = "",
    name: str = "",
    ax: Any = None,
) -> Figure:
    """Draw a row per `y` with dots at the metric `x` and 95 % intervals as whiskers; `pair` joins the dots of a row.

    The caption ends with what the intervals are over. Dots that are no pair stand apart, so that none hides another.

    `numbers` writes values beside dots where they fit. Without `log`, the range of the values chooses the scale.
    `ratio` is written at the right end: a table of `workbook.ratio`, or a pair of a table and the metric that it shows.
    `ticks` are reference values with the columns of `y`, `value` (SI) and, for the legend, `label`; each label has a
    mark of its own, or a line if several rows all have the same value. The axis has the `limits` (SI),
    or those of `draw.reach`; both cut off longer whiskers. A row without a value shows its reason; without
    `reasons`, only the fold below the figure has it. `colours` are those of `lines`.

    >>> frame = pd.DataFrame({"model": ["resnet50", "vgg16"], "value": [14_733.0, 12_000.0]})
    >>> dots(frame, y="model", x="images_per_s").alt
    'Dots: images/s by model'
    """
    rows = _rows(data, y, x, hue, sort)
    if ticks is None:
        ticks = pd.DataFrame({"value": [], "label": []})
    check_given(ticks)
    with styled():
        values, scale = rows.frame["value"].dropna(), metric_of(x).scale
        if values.empty:
            return rows.figure(nothing(ax, why_nothing(rows.frame)), "Dots", name, title, caption)
        whole, rows = rows, rows if reasons else replace(rows, frame=rows.frame.dropna(subset=["value"]))
        drawing, axes = rows.axes(ax)
        is_wide = may_be_log(values) and values.max() / values.min() > _LOG_FROM
        is_log = may_be_log(values) and (is_wide if log is None else log)
        axes.set_xscale("log" if is_log else "linear")
        ticks = _of_rows(rows, ticks)
        labels, common = ticks["label"].dropna().unique(), _common(rows, ticks)
        marks = {text: _TICKS[place % len(_TICKS)] for place, text in enumerate(labels) if text not in common}
        shown = pd.concat([reach(rows.frame, log=is_log), ticks["value"]]) if limits is None else pd.Series(limits)
        fit(axes, "x", shown * scale, log=is_log, pad=0.1)
        chosen = looks(rows.frame[hue], hue, colours) if hue else {None: Look(colour("ink"), "o")}
        notes, obstacles = [], []
        for place, key in enumerate(rows.keys):
            points = rows.at(key).dropna(subset=["value"])
            if points.empty:
                rows.write_reason(axes, place, why_nothing(rows.at(key)))
            elif pair and len(points) > 1:
                ends = points["value"].min() * scale, points["value"].max() * scale
                axes.plot(ends, [place, place], color=colour("faint"), linewidth=5, solid_capstyle="round", zorder=1)
            lanes = [kind for kind in chosen if hue and kind in set(points[hue])]
            for row in points.to_dict("records"):
                look, point = chosen[row[hue] if hue else None], row["value"] * scale
                lane = 0 if pair or not hue else lanes.index(row[hue]) - (len(lanes) - 1) / 2
                at = place + _DODGE * lane
                low, high = row["low"] * scale, row["high"] * scale
                if np.isfinite(high - low):  # the axes cut off what lies outside them
                    axes.hlines(at, low, high, color=look.colour, linewidth=2, zorder=2.5)
                axes.plot([point], [at], color=look.colour, marker=look.marker, markersize=7, linestyle="none")
                if numbers:
                    notes.append(Note(point, at, _value(row, x), look.colour, _BESIDE_DOT, needed=False))
            for row in rows.at(key, ticks).to_dict("records"):
                if row["label"] in common:
                    continue
                mark = marks.get(row["label"], _TICKS[0])
                shape = {"marker": mark, "markersize": _TICK_PT[mark], "markeredgewidth": 1.6, "linestyle": "none"}
                at = row["value"] * scale
                axes.plot([at], [place], color=colour("ink"), zorder=3, **shape)
                obstacles.append(([at, at], [place - 0.3, place + 0.3]))
            if ratio is not None:
                beside, metric = ratio if isinstance(ratio, tuple) else (ratio, "speedup")
                check_values(beside, metric)
                for row in rows.at(key, beside).dropna(subset=["value"]).head(1).to_dict("records"):
                    digits = digits_of(row["value"], row.get("low", NAN), row.get("high", NAN))
                    text = amount(row["value"], metric, digits)
                    _write(axes, (1, place), (6, 0), text, fontweight="bold")
        lines = {text: LINES[place % len(LINES)] for place, text in enumerate(common)}
        for text, value in common.items():
            at = value * scale
            axes.axvline(at, color=colour("ink"), linewidth=1.2, linestyle=lines[text], zorder=1.5)
            obstacles.append(([at, at], [-0.6, len(rows.keys) - 0.4]))
            if len(common) == 1:  # its name stands above it, towards the middle
                is_right = axes.transAxes.inverted().transform(axes.transData.transform((at, 0)))[0] > 0.5
                above = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "va": "bottom"}
                axes.annotate(text, (at, 1), (0, 2), ha="right" if is_right else "left", **above)
        named = {**marks, **(lines if len(common) > 1 else {})}
        references = [(name, Look(colour("ink"), mark)) for name, mark in named.items()]
        legend(axes, _entries(rows, chosen) + references, owned=ax is None)
        value_axis(axes, "x", log=is_log)
        axes.set_xlabel(axis_title(x, log=is_log))
        of_row = {note.y: [other.x for other in notes if other.y == note.y] for note in notes}
        notes.sort(key=lambda note: min(of_row[note.y]) < note.x < max(of_row[note.y]))  # those between come last
        place_notes(axes, notes, obstacles)
        fit_texts(axes)
    note = interval_note(whole.frame, "Whiskers", [end / scale for end in axes.get_xlim()])
    return whole.figure(drawing, "Dots", name, title, f"{caption} {note}".strip())


def stack(
    data: pd.DataFrame,
    *,
    y: str | Sequence[str],
    part: str,
    value: str,
    hatched: Sequence[str] = (),
    total: pd.DataFrame | None = None,
    title: str = "",
    caption: str = "",
    name: str = "",
) -> Figure:
    """Draw a row per `y` with a bar stacked from the parts in column `part`; the total stands at its end.

    `value` is a metric. Parts in `hatched`, such as "waiting", have a pattern instead of a colour. `total` are
    estimates of whole bars, of which complete parts are shares: means of parts need not add up to it. The total says
    whether parts are missing.

    >>> frame = pd.DataFrame({"model": "vgg16", "part": ["convolution", "waiting"], "value": [0.004, 0.002]})
    >>> stack(frame, y="model", part="part", value="step_s", hatched=["waiting"]).name
    'step-s-model'
    """
    rows = _Rows(estimates(data, value, unique(y, single(part))), unique(y), value, part)
    if total is not None:
        check_values(total, value)
    with styled():
        if rows.frame["value"].isna().all():
            return rows.figure(nothing(None, why_nothing(rows.frame)), "Stacked bars", name, title, caption)
        drawing, axes = rows.axes(None)
        parts = in_order(rows.frame[part], part)
        solid = [kind for kind in parts if kind not in hatched]
        fills = {kind: {"color": colour(SERIES[place % len(SERIES)])} for place, kind in enumerate(solid)}
        hatching = {"facecolor": "none", "edgecolor": colour("soft"), "hatch": "////", "linewidth": 0.8}
        for place, key in enumerate(rows.keys):
            pile = rows.at(key)
            points, left = pile.dropna(subset=["value"]), 0.0
            summed, is_whole = points["value"].sum(), len(points) == len(pile)
            whole = summed if total is None or not is_whole else rows.at(key, total)["value"].sum() or summed
            scale = metric_of(value).scale * (whole / summed if summed else 1.0)
            for row in points.to_dict("records"):
                width = row["value"] * scale
                axes.barh([place], [width], left=left, height=0.62, **fills.get(row[part], hatching))
                left += width
            if points.empty:
                rows.write_reason(axes, place, why_nothing(pile))
                continue
            text = amount(whole, value) + ("" if is_whole else " without missing parts")
            axes.annotate(text, (left, place), (5, 0), textcoords="offset points", va="center")
        axes.margins(x=0.12)
        value_axis(axes, "x", log=False)
        axes.set_xlabel(axis_title(value))
        shown = [(kind, Look(fills[kind]["color"], "s") if kind in fills else HATCH) for kind in parts]
        legend(axes, [(label(part, kind), look) for kind, look in shown], owned=True)
    return rows.figure(drawing, "Stacked bars", name, title, caption)


def _rows(data: pd.DataFrame, y: str | Sequence[str], x: str, hue: str | None, sort: Order | None) -> _Rows:
    """Return the estimates in display order, or sorted by the largest value of each row, missing values last."""
    frame, names = estimates(data, x, unique(y, single(hue))), unique(y)
    if sort not in (None, *get_args(Order)):
        raise unknown("order of rows", sort, get_args(Order))
    if sort is not None and len(frame):
        largest = frame.groupby(names, sort=False, dropna=False)["value"].transform("max")
        frame = frame.loc[largest.sort_values(ascending=sort == "ascending", kind="stable").index]
    return _Rows(frame.reset_index(drop=True), names, x, hue)


def _of_rows(rows: _Rows, ticks: pd.DataFrame) -> pd.DataFrame:
    """Return the reference values that a row of the plot has: only these are drawn, and named in the legend."""
    present = ticks.dropna(subset=["value"]).reset_index(drop=True)
    named = present if "label" in present else present.assign(label="reference")
    return named[named.index.isin([place for key in rows.keys for place in rows.at(key, named).index])]


def _common(rows: _Rows, ticks: pd.DataFrame) -> dict[str, float]:
    """Return the labels of reference values that are the same in every row of a plot of several, with the value."""
    values: dict[str, list[float]] = {}
    for key in rows.keys:
        for row in rows.at(key, ticks).dropna(subset=["label"]).to_dict("records"):
            values.setdefault(row["label"], []).append(row["value"])
    return {text: of[0] for text, of in values.items() if len(of) == len(rows.keys) > 1 and len(set(of)) == 1}


def _entries(rows: _Rows, chosen: Mapping[Any, Look]) -> list[tuple[str, Look]]:
    """Return the legend's entries: the values of hue that are drawn, without those that are the name of a row."""
    if rows.hue is None:
        return []
    drawn = set(rows.frame.dropna(subset=["value"])[rows.hue]) - {first for first, *_ in rows.texts}
    return [(label(rows.hue, kind), look) for kind, look in chosen.items() if kind in drawn]


def _value(row: Mapping[str, Any], metric: str) -> str:
    return amount(row["value"], metric, digits_of(row["value"], row["low"], row["high"]))


def _kept_together(text: str) -> str:
    return text.replace(" ", _NO_BREAK) if len(text) <= _NAME_CHARACTERS else text


def _write(axes: Any, at: tuple[float, float], offset_pt: tuple[float, float], text: str, **looks_of_text: Any) -> None:
    """Write a text beside a row; `at` is a share of the width of the axes, and the number of the row."""
    words = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center", **looks_of_text}
    axes.annotate(text, at, offset_pt, **words)
