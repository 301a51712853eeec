"""Plots with a continuous axis: a sweep, telemetry over time, a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from labkit.errors import UserError
from labkit.show.draw import (
    ABOVE,
    BELOW,
    MARKERS,
    RIGHT,
    Look,
    Note,
    axis_title,
    check_colours,
    fit,
    legend,
    looks,
    may_be_log,
    measured_axis,
    nothing,
    panels,
    place_notes,
    reach,
    value_axis,
)
from labkit.show.figure import WIDTH_IN, Figure, colour, slug, styled
from labkit.show.frames import estimates, unique, why_nothing
from labkit.show.labels import heading, in_order, label
from labkit.show.quantities import amount, digits_of, metric_of

MOST_LABELS = 4  # most series that are named at the ends of their lines
_MOST_MARKED = 16  # most points of a series with a marker each
_LONG = 16  # most characters of a series' name on one line
_DASHES = ("-", "--", ":", "-.")
_ONE_LINE = ("source", "pass_number", "host", "study")  # columns that must be constant in a line of telemetry
_LIMIT = {"linewidth": 1.2, "linestyle": (0, (4, 2))}


@dataclass(frozen=True)
class _Series:
    """One line of a sweep: the column values that select its rows, and its look."""

    values: Mapping[str, Any]  # column -> value
    look: Look
    dashes: str

    @property
    def text(self) -> str:
        return ", ".join(label(column, value) for column, value in self.values.items())

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of `frame` that belong to the series."""
        chosen = np.ones(len(frame), dtype=bool)
        for column, value in self.values.items():
            chosen &= (frame[column] == value).to_numpy(dtype=bool)
        return frame[chosen]


def lines(
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str | None = None,
    style: str | None = None,
    col: str | None = None,
    log: bool | Literal["x"] = True,
    values_at: Sequence[float] = (),
    bound: pd.DataFrame | None = None,
    colours: Mapping[Any, str] | None = None,
    join: int = 3,
    title: str = "",
    caption: str = "",
    alt: str = "",
    name: str = "",
    ax: Any = None,
    size_in: tuple[float, float] | None = None,
) -> Figure:
    """Draw a sweep: the metric `y` against `x`, a colour per `hue`, a marker per `style`, a panel per `col`.

    A line joins neighbouring points of a series of `join` or more. The 95 % interval is a band; fewer points have
    whiskers. A single panel names up to four series at their ends; a legend names more. `values_at` are values of `x`
    at which `y` is written. `bound` is a curve on a fine grid of `x` with the column `value`. `colours` maps values
    of `hue` to colours of your own; another key raises UserError. With `log="x"` only the x axis is logarithmic, as for
    shares.

    >>> frame = pd.DataFrame({"batch": [16, 64, 256], "value": [1e3, 4e3, 9e3], "low": [9e2, 3e3, 8e3],
    ...                       "high": [1.1e3, 5e3, 1e4]})
    >>> lines(frame, x="batch", y="images_per_s", title="Throughput grows with the batch").name
    'images-per-s-batch'
    """
    frame = estimates(data, y, unique(x, hue, style, col))
    check_colours(colours, frame, hue)
    measured = frame.dropna(subset=["value", x])
    kinds = in_order(measured[col], col) if col else [None]
    with styled():
        if measured.empty:
            drawing = nothing(ax, why_nothing(frame))
        else:
            width_in, height_in = size_in or (WIDTH_IN, 3.3 if len(kinds) < 2 else 2.1 * -(-len(kinds) // 2) + 0.6)
            drawing, grid = panels(ax, len(kinds), width_in=width_in, height_in=height_in)
            series = _series(measured, hue, style, colours)
            asked = {"x": bool(log), "y": log is True}
            is_log = {along: asked[along] and may_be_log(measured[of]) for along, of in (("x", x), ("y", "value"))}
            is_named = len(kinds) == 1 and len(series) <= MOST_LABELS
            if not is_named:
                legend(grid[0], [(entry.text, entry.look) for entry in series if entry.values], owned=ax is None)
            _fit(grid[0], measured if bound is None else pd.concat([measured, bound]), x, y, is_log)
            for place, (axes, kind) in enumerate(zip(grid, kinds, strict=True)):
                part = frame if kind is None else frame[frame[col] == kind]
                limit = bound if bound is None or col not in bound else bound[bound[col] == kind]
                words = [label(str(col), kind)] if kind is not None else []
                axes.set_title(", ".join([*words, axis_title(y, log=is_log["y"])] if place == 0 else words))
                axes.set_xlabel(axis_title(x) if place >= len(kinds) - 2 else "")
                _sweep(
                    axes,
                    part,
                    series,
                    x,
                    y,
                    is_log=is_log,
                    is_named=is_named,
                    values_at=values_at,
                    bound=limit,
                    join=join,
                )
    alt = alt or f"{title or 'Lines'}: {axis_title(y)} against {heading(x)}"
    return Figure(drawing, name or slug(y, x), alt, frame, title, caption, y)


def _fit(axes: Any, frame: pd.DataFrame, x: str, y: str, is_log: Mapping[str, bool]) -> None:
    """Set the scales and limits of all panels. The axes cut off the ends of very wide intervals."""
    axes.set(xscale="log" if is_log["x"] else "linear", yscale="log" if is_log["y"] else "linear")
    fit(axes, "x", frame[x] * metric_of(x).scale, log=is_log["x"])
    fit(axes, "y", reach(frame, log=is_log["y"]) * metric_of(y).scale, log=is_log["y"])


def _series(frame: pd.DataFrame, hue: str | None, style: str | None, own: Mapping[Any, str] | None) -> list[_Series]:
    """Return a series per combination of `hue` (its colour) and `style` (its marker and dashes)."""
    columns = unique(hue, style)
    if not columns:
        return [_Series({}, Look(colour("ink"), "o"), "-")]
    colours = looks(frame[hue], hue, own) if hue else {}
    kinds = in_order(frame[style], style) if style and style != hue else []
    entries = []
    for values in frame[columns].dropna().drop_duplicates().to_dict("records"):
        look = colours[values[hue]] if hue else Look(colour("ink"), "o")
        place = kinds.index(values[style]) if kinds else 0
        look = Look(look.colour, MARKERS[place % len(MARKERS)]) if kinds else look
        entries.append(_Series(values, look, _DASHES[place % len(_DASHES)]))
    return entries


def _sweep(
    axes: Any,
    frame: pd.DataFrame,
    series: Sequence[_Series],
    x: str,
    y: str,
    *,
    is_log: Mapping[str, bool],
    is_named: bool,
    values_at: Sequence[float],
    bound: pd.DataFrame | None,
    join: int,
) -> None:
    """Draw the series of one panel, its axes, and the names and values beside its points."""
    across, scale = metric_of(x).scale, metric_of(y).scale
    measured = frame.dropna(subset=["value", x])
    curves, ends, values = [], [], []
    if bound is not None and len(bound):
        grid = bound.sort_values(x)
        curves.append((grid[x] * across, grid["value"] * scale))
        axes.plot(*curves[0], color=colour("soft"), **_LIMIT)
    for entry in series:
        rows = entry.rows(frame).dropna(subset=[x]).sort_values(x)
        points = rows.dropna(subset=["value"])
        if points.empty:
            continue
        is_joined = len(points) >= join
        curve = rows[x] * across, rows["value"] * scale
        curves += [curve] if is_joined else [((at,), (value,)) for at, value in zip(*curve, strict=True)]
        low, high = (rows["low"] * scale).clip(lower=axes.get_ylim()[0]), rows["high"] * scale
        if is_joined:
            axes.fill_between(rows[x] * across, low, high, color=entry.look.colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(rows[x] * across, low, high, color=entry.look.colour, linewidth=2, alpha=0.6)
        axes.plot(
            *curve,
            color=entry.look.colour,
            marker="" if is_joined and len(points) > _MOST_MARKED else entry.look.marker,
            linestyle=entry.dashes if is_joined else "none",
            markeredgecolor=colour("ground"),
            markeredgewidth=0.6,
            label=entry.text,
        )
        last = points.iloc[-1]
        if is_named and entry.values:
            text = entry.text.replace(" + ", "\n+ ") if len(entry.text) > _LONG else entry.text
            early = [*ABOVE, (7, 6, "left", "bottom"), *BELOW, *RIGHT]
            places = RIGHT if last[x] >= measured[x].max() else early
            ends.append(Note(last[x] * across, last["value"] * scale, text, entry.look.colour, places))
        for row in points[points[x].isin(list(values_at))].to_dict("records"):
            text = amount(row["value"], y, digits_of(row["value"], row["low"], row["high"]))
            at = row[x] * across, row["value"] * scale
            values.append(Note(*at, text, entry.look.colour, [*ABOVE, *BELOW], needed=False))
    value_axis(axes, "y", log=is_log["y"])
    place_notes(axes, [*ends, *values], curves)
    if measured[x].nunique() <= _MOST_MARKED:
        measured_axis(axes, "x", list(measured[x] * across), column=x)
    else:
        value_axis(axes, "x", log=is_log["x"])


def series(
    data: pd.DataFrame,
    *,
    x: str = "time_s",
    y: str = "value",
    panel: str = "metric",
    hue: str | None = None,
    limits: Mapping[str, float] | None = None,
    title: str = "",
    caption: str = "",
    alt: str = "",
    name: str = "",
    size_in: tuple[float, float] | None = None,
) -> Figure:
    """Draw telemetry over time: a panel per metric on a common time axis, a line per `hue`, dashed `limits` (SI).

    A value holds until the next row, as sensors report changes. Raise UserError if a line would mix runs or sensors.

    >>> frame = pd.DataFrame({"time_s": [0, 1, 2], "metric": "power_w", "value": [90, 400, 420]})
    >>> series(frame, limits={"power_w": 700}).axes[0].get_title(loc="left")
    'board power, W (dashed: limit 700)'
    """
    columns = unique(x, panel, hue, y)
    measured = data.dropna(subset=[x, y]) if len(data) else data
    kinds = in_order(measured[panel], panel) if len(measured) else []
    with styled():
        if not kinds:
            drawing = nothing(None, why_nothing(data))
        else:
            width_in, height_in = size_in or (WIDTH_IN, 1.05 * len(kinds) + 0.6)
            drawing, grid = panels(None, len(kinds), columns=1, width_in=width_in, height_in=height_in, share="x")
            chosen = looks(measured[hue], hue) if hue else {None: Look(colour("ink"), "")}
            if hue:
                legend(grid[0], [(label(hue, value), look) for value, look in chosen.items()], owned=True)
            for axes, kind in zip(grid, kinds, strict=True):
                scale, part = metric_of(kind).scale, measured[measured[panel] == kind]
                limit = (limits or {}).get(kind)
                for value, look in chosen.items():
                    rows = (part if hue is None else part[part[hue] == value]).sort_values(x)
                    mixed = [column for column in _ONE_LINE if column in rows and rows[column].nunique() > 1]
                    if mixed:
                        raise UserError(f"a line of {kind} would mix {', '.join(mixed)}: choose one with `query`.")
                    axes.step(rows[x], rows[y] * scale, where="post", color=look.colour, linewidth=1.4)
                if limit is not None:
                    axes.axhline(limit * scale, color=colour("soft"), **_LIMIT)
                note = f" (dashed: limit {amount(limit, kind)})" if limit is not None else ""
                axes.set_title(axis_title(kind) + note)
                axes.set_ylim(bottom=min(0.0, float(part[y].min()) * scale))
                axes.margins(x=0)
                value_axis(axes, "y", log=False, most=3)
            grid[-1].set_xlabel(axis_title(x))
    alt = alt or f"{title or 'Telemetry'}: {', '.join(map(axis_title, kinds))} against {heading(x)}"
    return Figure(drawing, name or slug(y, "over", x), alt, data[columns] if kinds else data, title, caption)


def roofline(
    data: pd.DataFrame,
    ceilings: pd.DataFrame,
    *,
    x: str = "flop_per_byte",
    y: str = "flop_per_s",
    labels: str | Sequence[str] = (),
    hue: str | None = None,
    title: str = "",
    caption: str = "",
    alt: str = "",
    name: str = "roofline",
    ax: Any = None,
    size_in: tuple[float, float] = (WIDTH_IN, 3.4),
) -> Figure:
    """Draw FLOP/s against FLOP/byte under `ceilings`, with the columns `name`, `flop_per_s` and `bytes_per_s`.

    The columns `labels` name the points (roofline: Williams et al., CACM 2009).

    >>> peaks = pd.DataFrame({"name": ["FP32"], "flop_per_s": [60e12], "bytes_per_s": [4e12]})
    >>> points = pd.DataFrame({"model": ["vgg16"], "flop_per_byte": [40.0], "value": [3e13]})
    >>> roofline(points, peaks, labels="model").alt
    'Roofline: arithmetic rate, TFLOP/s (log) against FLOP per byte'
    """
    names = unique(labels)
    frame = estimates(data, y, unique(x, names, hue))
    measured = frame[(frame[x] > 0) & (frame["value"] > 0)]  # a log axis shows positive values only
    alt = alt or f"{title or 'Roofline'}: {axis_title(y, log=True)} against FLOP per byte"
    with styled():
        if measured.empty and ceilings.empty:
            return Figure(nothing(ax, why_nothing(frame)), name, alt, frame, title, caption, y)
        drawing, (axes, *_) = panels(ax, width_in=size_in[0], height_in=size_in[1])
        scale = metric_of(y).scale
        ridges = [] if ceilings.empty else (ceilings["flop_per_s"] / ceilings["bytes_per_s"]).dropna().tolist()
        places = [*measured[x], *ridges] or [1.0]
        grid = np.geomspace(min(places) / 3, max(places) * 3, 200)
        axes.set(xscale="log", yscale="log", title=axis_title(y, log=True), xlabel="FLOP per byte (log)")
        roofs, notes = [], []
        for peak in ceilings.to_dict("records"):
            roof = np.fmin(peak["flop_per_s"], peak["bytes_per_s"] * grid) * scale
            if np.isfinite(roof).all():
                axes.plot(grid, roof, color=colour("soft"), linewidth=1.4)
                roofs.append((grid, roof))
                beside = [(-2.0, 3.0, "right", "bottom"), (-2.0, -3.0, "right", "top")]
                notes.append(Note(grid[-1], roof[-1], str(peak["name"]), colour("soft"), beside))
        chosen = looks(measured[hue], hue) if hue else {None: Look(colour("ink"), "o")}
        for row in measured.to_dict("records"):
            look, value = chosen[row[hue] if hue else None], row["value"] * scale
            axes.plot([row[x]], [value], color=look.colour, marker=look.marker, linestyle="none")
            if row["low"] > 0:
                axes.vlines(row[x], row["low"] * scale, row["high"] * scale, color=look.colour, linewidth=2, alpha=0.6)
            text = ", ".join(label(column, row[column]) for column in names)
            around = [(7.0, 0.0, "left", "center"), *ABOVE, *BELOW, (-7.0, 0.0, "right", "center")]
            notes.append(Note(row[x], value, text, look.colour, around))
        if hue and hue not in names:
            legend(axes, [(label(hue, value), look) for value, look in chosen.items()], owned=ax is None)
        heights = [peak for _, roof in roofs for peak in (roof[0], roof[-1])]
        fit(axes, "x", grid, log=True, pad=0.0)
        fit(axes, "y", [*(measured["value"] * scale), *heights], log=True)
        value_axis(axes, "y", log=True)
        value_axis(axes, "x", log=True)
        place_notes(axes, notes, roofs)
    return Figure(drawing, name, alt, frame, title, caption, y)
