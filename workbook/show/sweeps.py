"""Plots with a continuous axis: a sweep, and telemetry over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pandas as pd

from labkit.errors import UserError, unknown
from workbook.results.columns import check_columns, single
from workbook.show.draw import (
    ABOVE,
    BELOW,
    RIGHT,
    UNDER,
    Look,
    Note,
    axis_title,
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
from workbook.show.figure import WIDTH_IN, Figure, colour, slug, styled
from workbook.show.frames import check_given, estimates, interval_note, why_nothing
from workbook.words import amount, digits_of, heading, in_order, label, metric_of

MOST_LABELS = 4  # most series that are named at the ends of their lines
_MOST_MARKED = 16  # most points of a series with a marker each
_LONG = 16  # most characters of a series' name on one line
_ONE_LINE = ("source", "pass_number", "host", "study")  # columns that must be constant in a line of telemetry


def lines(
    data: pd.DataFrame,
    *,
    x: str,
    y: str,
    hue: str | None = None,
    col: str | None = None,
    log: bool | Literal["x"] = True,
    values_at: Sequence[float] = (),
    bound: pd.DataFrame | None = None,
    colours: Mapping[Any, str] | None = None,
    join: int = 3,
    title: str = "",
    caption: str = "",
    name: str = "",
    ax: Any = None,
    size_in: tuple[float, float] | None = None,
) -> Figure:
    """Draw a sweep: the metric `y` against `x`, a colour and a marker per `hue`, a panel per `col`.

    A line joins neighbouring points of a series of `join` or more. The 95 % interval is a band; fewer points have
    whiskers. The caption ends with what the intervals are over. A single panel names up to four series at their ends; a
    legend names more. `values_at` are values of `x` at which `y` is written. `bound` is a curve on a fine grid of `x`
    with the column `value`. `colours` maps values of `hue` to colours of your own; another key raises UserError. With
    `log="x"` only the x axis is logarithmic, as for shares.

    >>> frame = pd.DataFrame({"batch": [16, 64, 256], "value": [1e3, 4e3, 9e3], "low": [9e2, 3e3, 8e3],
    ...                       "high": [1.1e3, 5e3, 1e4]})
    >>> lines(frame, x="batch", y="images_per_s", title="Throughput grows with the batch").name
    'images-per-s-batch'
    """
    frame = estimates(data, y, single(x, hue, col))
    if bound is not None:
        check_given(bound, x)
    valid = in_order(frame[hue], hue) if hue else []
    if len(frame) and (others := [repr(name) for name in colours or () if name not in valid]):
        has = f"hue={hue!r} has the values {', '.join(map(repr, valid)) or 'of no column'}"
        raise UserError(f"colours names {', '.join(others)}, which the figure does not have; {has}.")
    measured = frame.dropna(subset=["value", x])
    if len(measured) and not pd.api.types.is_numeric_dtype(measured[x].infer_objects()):
        raise UserError(f"the column {x} has no numbers for an axis; `plots.dots(…, y={x!r})` draws a row for each.")
    if log not in (True, False, "x"):
        raise unknown("log", log, ("True", "False", "x"))
    kinds = in_order(measured[col], col) if col else [None]
    with styled():
        if measured.empty:
            drawing, limits = nothing(ax, why_nothing(frame)), (0.0, 0.0)
        else:
            width_in, height_in = size_in or (WIDTH_IN, 3.3 if len(kinds) < 2 else 2.1 * -(-len(kinds) // 2) + 0.6)
            drawing, grid = panels(ax, len(kinds), width_in=width_in, height_in=height_in)
            chosen = looks(measured[hue], hue, colours) if hue else {None: Look(colour("ink"), "o")}
            asked = {"x": bool(log), "y": log is True}
            is_log = {along: asked[along] and may_be_log(measured[of]) for along, of in (("x", x), ("y", "value"))}
            is_named = len(kinds) == 1 and len(chosen) <= MOST_LABELS
            if not is_named:
                legend(grid[0], [(label(hue, value), look) for value, look in chosen.items() if hue], owned=ax is None)
            # All panels share these scales and limits. The axes cut off the ends of very wide intervals.
            grid[0].set(xscale="log" if is_log["x"] else "linear", yscale="log" if is_log["y"] else "linear")
            fitted = measured if bound is None else pd.concat([measured, bound])
            fit(grid[0], "x", fitted[x] * metric_of(x).scale, log=is_log["x"])
            fit(grid[0], "y", reach(fitted, log=is_log["y"]) * metric_of(y).scale, log=is_log["y"])
            for place, (axes, kind) in enumerate(zip(grid, kinds, strict=True)):
                part = frame if kind is None else frame[frame[col] == kind]
                limit = bound if bound is None or col not in bound else bound[bound[col] == kind]
                words = [label(str(col), kind)] if kind is not None else []
                axes.set_title(", ".join([*words, axis_title(y, log=is_log["y"])] if place == 0 else words))
                axes.set_xlabel(axis_title(x) if place >= len(kinds) - 2 else "")
                _sweep(
                    axes,
                    part,
                    hue,
                    chosen,
                    x,
                    y,
                    is_log=is_log,
                    is_named=is_named,
                    values_at=values_at,
                    bound=limit,
                    join=join,
                )
            limits = tuple(end / metric_of(y).scale for end in grid[0].get_ylim())
    alt = f"{title or 'Lines'}: {axis_title(y)} against {heading(x)}"
    caption = f"{caption} {interval_note(measured, _marks(measured, single(hue, col), join), limits)}".strip()
    return Figure(drawing, name or slug(y, x), alt, frame, title, caption, y)


def _marks(measured: pd.DataFrame, of_series: Sequence[str], join: int) -> str:
    """Return how the intervals of the series in a figure of `lines` are drawn."""
    are_bands = (measured.groupby(of_series).size() if of_series else pd.Series(len(measured))) >= join
    return "Bands" if are_bands.all() else "Bands and whiskers" if are_bands.any() else "Whiskers"


def _sweep(
    axes: Any,
    frame: pd.DataFrame,
    hue: str | None,
    chosen: Mapping[Any, Look],
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
    curves, ends, values, measured = [], [], [], frame.dropna(subset=["value", x])
    if bound is not None and len(bound):
        grid = bound.sort_values(x)
        curves.append((grid[x] * across, grid["value"] * scale))
        axes.plot(*curves[0], color=colour("soft"), linewidth=1.2, linestyle=(0, (4, 2)))
    for kind, look in chosen.items():
        text = label(hue, kind) if hue else ""
        rows = (frame[frame[hue] == kind] if hue else frame).dropna(subset=[x]).sort_values(x)
        points = rows.dropna(subset=["value"])
        if points.empty:
            continue
        is_joined = len(points) >= join
        curve = rows[x] * across, rows["value"] * scale
        curves += [curve] if is_joined else [((at,), (value,)) for at, value in zip(*curve, strict=True)]
        low, high = (rows["low"] * scale).clip(lower=axes.get_ylim()[0]), rows["high"] * scale
        if is_joined:
            axes.fill_between(rows[x] * across, low, high, color=look.colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(rows[x] * across, low, high, color=look.colour, linewidth=2, alpha=0.6)
        axes.plot(
            *curve,
            color=look.colour,
            marker="" if is_joined and len(points) > _MOST_MARKED else look.marker,
            linestyle="-" if is_joined else "none",
            markeredgecolor=colour("ground"),
            markeredgewidth=0.6,
            label=text,
        )
        last = points.iloc[-1]
        if is_named and text:
            text = text.replace(" + ", "\n+ ") if len(text) > _LONG else text
            early = [*ABOVE, (7, 6, "left", "bottom"), *BELOW, *RIGHT]
            places = RIGHT if last[x] >= measured[x].max() else early
            ends.append(Note(last[x] * across, last["value"] * scale, text, look.colour, places))
        for row in points[points[x].isin(list(values_at))].to_dict("records"):
            text = amount(row["value"], y, digits_of(row["value"], row["low"], row["high"]))
            at = row[x] * across, row["value"] * scale
            values.append(Note(*at, text, look.colour, [*ABOVE, *BELOW], needed=False))
    value_axis(axes, "y", log=is_log["y"])
    for notes in (ends, values):  # from the right and top
        notes.sort(key=lambda note: (-note.x, -note.y))
    ends = [  # labels at the right have the order of their lines: all but the first move down only
        replace(note, places=UNDER) if above and note.places is RIGHT else note
        for above, note in zip([None, *ends], ends, strict=False)
    ]
    place_notes(axes, [*ends, *values], curves, may_cover=False)
    if measured[x].nunique() <= _MOST_MARKED:
        measured_axis(axes, "x", list(measured[x] * across), column=x)
    else:
        value_axis(axes, "x", log=is_log["x"])


def series(
    data: pd.DataFrame,
    *,
    panel: str = "metric",
    hue: str | None = None,
    title: str = "",
    caption: str = "",
    name: str = "",
    size_in: tuple[float, float] | None = None,
) -> Figure:
    """Draw telemetry over time: a panel per metric on a common time axis, a line per `hue`.

    A value holds until the next row, as sensors report changes. Raise UserError if a line would mix runs or sensors.

    >>> frame = pd.DataFrame({"time_s": [0, 1, 2], "metric": "power_w", "value": [90, 400, 420]})
    >>> series(frame).axes[0].get_title(loc="left")
    'board power, W'
    """
    columns = single("time_s", panel, hue, "value")
    check_columns(data, columns if len(data) else ())
    measured = data.dropna(subset=["time_s", "value"]) if len(data) else data
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
                for value, look in chosen.items():
                    rows = (part if hue is None else part[part[hue] == value]).sort_values("time_s")
                    mixed = [column for column in _ONE_LINE if column in rows and rows[column].nunique() > 1]
                    if mixed:
                        raise UserError(f"a line of {kind} would mix {', '.join(mixed)}: choose one with `query`.")
                    axes.step(rows["time_s"], rows["value"] * scale, where="post", color=look.colour, linewidth=1.4)
                axes.set_title(axis_title(kind))
                axes.set_ylim(bottom=min(0.0, float(part["value"].min()) * scale))
                axes.margins(x=0)
                value_axis(axes, "y", log=False, most=3)
            grid[-1].set_xlabel(axis_title("time_s"))
    alt = f"{title or 'Telemetry'}: {', '.join(map(axis_title, kinds))} against {heading('time_s')}"
    return Figure(drawing, name or "value-over-time-s", alt, data[columns] if kinds else data, title, caption)
