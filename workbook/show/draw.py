"""Shared parts of all drawings: colours by meaning, panels, axes with plain numbers, labels that do not overlap."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from workbook.show.figure import DPI, SERIES, SMALL_PT, WIDTH_IN, colour, font_pt, new_drawing
from workbook.words import NOT_MEASURED, heading, in_order, label, metric_of, role

LINES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_MARKER_OF_ROLE = {"baseline": "o", "between": "D", "optimised": "s"}
_LOOK_OF = {  # (column, value): name of the colour, marker
    ("precision", "fp32"): ("baseline", "o"),
    ("precision", "default"): ("c4", "P"),
    ("precision", "tf32"): ("c5", "^"),
    ("precision", "fp16"): ("c2", "D"),
    ("precision", "bf16"): ("c1", "s"),
    ("precision", "int8"): ("c3", "v"),
    ("basis", "measured"): ("c1", "o"),
    ("basis", "predicted"): ("c5", "D"),
    ("basis", "published"): ("baseline", "X"),
    **{("counter", name): ("c3", "D") for name in ("utilisation", "nvidia-smi")},  # devices have c1 and c2
    **{("counter", name): ("c5", "v") for name in ("SM activity", "SMs with work")},
}
_LINE_CHARACTERS = 64  # characters of 10 points that fit in a row of a legend
_LEGEND_LINES = 2  # for which the height of a drawing has room
_TICK_GAP = 4.0  # points between two tick labels
_MOST_TICKS = 6


@dataclass(frozen=True)
class Look:
    """The colour and marker of one value of a column, or in a legend the style of a line."""

    colour: str
    marker: str


def looks(values: Iterable[Any], column: str, own: Mapping[Any, str] | None = None) -> dict[Any, Look]:
    """Return the colour and marker of each value, in display order.

    Execution modes and precisions look the same in every figure. Other values take the series colours in turn.
    `own` are colours of the caller, value -> colour of matplotlib.
    """
    chosen: dict[Any, Look] = {}
    taken: set[str] = set()
    for value in in_order(values, column):
        meaning = role(column, value)
        if (column, value) in _LOOK_OF:
            name, marker = _LOOK_OF[column, value]
        elif meaning is None or meaning in taken:
            number_of_others = sum(look.colour in map(colour, SERIES) for look in chosen.values())
            name, marker = SERIES[number_of_others % len(SERIES)], MARKERS[number_of_others % len(MARKERS)]
        else:
            name, marker = meaning, _MARKER_OF_ROLE[meaning]
        taken.add(name)
        chosen[value] = Look((own or {}).get(value, colour(name)), marker)
    return chosen


def panels(
    ax: Any, count: int = 1, *, columns: int = 2, width_in: float = WIDTH_IN, height_in: float = 3.3, share: str = "xy"
) -> tuple[Any, list[Any]]:
    """Return the drawing and `count` axes: `ax` itself, repeated, or new axes in rows of `columns`."""
    if ax is not None:
        return ax.figure, [ax] * max(count, 1)
    drawing = new_drawing(width_in, height_in)
    columns = min(columns, max(count, 1))
    grid = drawing.subplots(
        -(-max(count, 1) // columns), columns, squeeze=False, sharex="x" in share, sharey="y" in share
    ).ravel()
    for spare in grid[max(count, 1) :]:
        spare.set_axis_off()
    return drawing, list(grid[: max(count, 1)])


def nothing(ax: Any, reason: str) -> Any:
    """Return a drawing that shows only the reason for its missing values."""
    drawing, (axes, *_) = panels(ax, height_in=0.9)
    axes.set_axis_off()
    text = reason if reason == NOT_MEASURED else f"{NOT_MEASURED} ({reason})"
    lines = textwrap.wrap(text, 56)[:4]
    for place, line in enumerate(lines):
        height = 0.5 + (len(lines) - 1) / 2 * 0.22 - place * 0.22
        axes.text(0.5, height, line, ha="center", va="center", color=colour("soft"), transform=axes.transAxes)
    return drawing


def axis_title(column: str, *, log: bool = False) -> str:
    """Return the title of an axis: the heading of `column` with its unit."""
    unit = metric_of(column).unit
    text = f"{heading(column)}, %" if unit == "%" else heading(column)
    return f"{text} (log)" if log else text


def may_be_log(values: Any) -> bool:
    """Return whether there are finite values and all of them are positive."""
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return bool(len(finite)) and bool((finite > 0).all())


def reach(frame: pd.DataFrame, *, log: bool) -> pd.Series[float]:
    """Return the values and ends of intervals that an axis shows; ends far outside the range of values are moved in.

    The interval of two runs may be a hundred times as wide as all values together, which then could not be told apart.
    """
    values = frame["value"].dropna()
    least, most = values.min(), values.max()
    room = max(most - least, abs(values).max() / 4)
    bounds = (least / 3, most * 3) if log else (least - room, most + room)
    return pd.concat([values, *(frame[end].dropna().clip(*bounds) for end in ("low", "high"))])


def fit(axes: Any, along: str, values: Iterable[float], *, log: bool, pad: float = 0.06) -> None:
    """Set the axis limits, with a margin around the values and earlier drawings, also where all values are equal."""
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    finite += list(getattr(axes, f"get_{along}lim")()) if axes.lines or axes.collections else []
    low, high = min(finite), max(finite)
    if log:
        factor = max((high / low) ** pad, 1.15)
        getattr(axes, f"set_{along}lim")(low / factor, high * factor)
    else:
        room = (high - low) * pad or abs(high) * pad or 1.0
        getattr(axes, f"set_{along}lim")(low - room, high + room)


def value_axis(axes: Any, along: str, *, log: bool, most: int = 5) -> None:
    """Put plain numbers on a value axis, on a log axis at 1, 2, 5 or powers of ten. Call this after drawing."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axis = getattr(axes, f"{along}axis")
    room = SMALL_PT / font_pt() if along == "x" else 1.0  # for the labels of larger texts
    axis.set_major_locator(MaxNLocator(max(2, int(most * room))))
    if log:
        low, high = axis.get_view_interval()
        places = _log_ticks(low, high)
        axis.set_major_locator(FixedLocator(places) if len(places) > 1 else MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [step * 10.0**decade for decade in decades for step in (1, 2, 5) if low <= step * 10.0**decade <= high]
    tens = [10.0**decade for decade in decades if low <= 10.0**decade <= high]
    if len(every) <= _MOST_TICKS:
        return every
    return tens[:: -(-len(tens) // _MOST_TICKS)] if len(tens) > 1 else every[::2]


def fit_texts(axes: Any) -> None:
    """Leave out labels of the x axis that touch a larger one, and move its title to the left if it would be cut off.

    Call this once the drawing has its layout.
    """
    from matplotlib.ticker import FixedLocator

    kept: list[tuple[float, Any]] = []
    for value, text in sorted(zip(axes.get_xticks(), axes.get_xticklabels(), strict=True), reverse=True):
        box = text.get_window_extent().padded(_TICK_GAP / 2, 0)
        if not any(box.overlaps(neighbour) for _, neighbour in kept):
            kept.append((value, box))
    axes.xaxis.set_major_locator(FixedLocator([value for value, _ in kept]))
    if axes.xaxis.label.get_window_extent().x1 > axes.figure.bbox.x1:
        axes.set_xlabel(axes.get_xlabel(), loc="right")


def measured_axis(axes: Any, along: str, values: Sequence[float], *, column: str) -> None:
    """Label the measured values on an axis, as many as fit. Call this once the drawing has its layout."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis = getattr(axes, f"{along}axis")
    side = "xy".index(along)
    texts: dict[float, str] = {}
    spans: list[tuple[float, float]] = []
    for value in sorted(set(values), reverse=True):  # the largest comes first, so its label always fits
        text = label(column, value).removesuffix(" px")
        place = axes.transData.transform((value, value))[side]
        half = (len(text) * 0.63 if along == "x" else 1.2) * font_pt() / 2 + _TICK_GAP / 2
        fits = all(place + half <= low or high <= place - half for low, high in spans)
        texts[value] = text if fits else ""
        spans += [(place - half, place + half)] if fits else []
    axis.set_major_locator(FixedLocator(list(texts)))
    axis.set_major_formatter(FixedFormatter(list(texts.values())))
    axis.set_minor_locator(NullLocator())


def legend(axes: Any, entries: Sequence[tuple[str, Look]], *, owned: bool) -> None:
    """Draw a legend of coloured names above the axes; with `owned` it may span the whole drawing, which then grows."""
    from matplotlib.lines import Line2D

    if not entries:
        return
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            label=name,
            linewidth=1.2,
            linestyle="none",
            marker=look.marker,
            fillstyle="none" if look is HATCH else "full",
        )
        if look.marker not in LINES
        else Line2D([], [], color=look.colour, label=name, linewidth=1.2, linestyle=look.marker)
        for name, look in entries
    ]
    lengths, most = [len(name) + 4 for name, _ in entries], _LINE_CHARACTERS * SMALL_PT / font_pt()
    fits = (n for n in range(1, len(entries) + 1) if sum(map(max, np.array_split(lengths, n))) <= most)
    columns = max(fits, default=1)
    words: dict[str, Any] = {"ncols": columns, "labelcolor": "linecolor", "handletextpad": 0.2, "columnspacing": 1.2}
    words |= {"handles": handles, "borderaxespad": 0.2, "handlelength": 1.2, "borderpad": 0.1}
    if owned:
        beyond = max(0, -(-len(entries) // columns) - _LEGEND_LINES)
        axes.figure.set_figheight(axes.figure.get_figheight() + beyond * 1.5 * font_pt() / DPI)
        axes.figure.legend(loc="outside upper left", **words)
    else:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), **words)


HATCH = Look(colour("soft"), "s")  # of a part without a colour


@dataclass(frozen=True)
class Note:
    """A text beside a data point. `places` are offsets in points with alignments, in order of preference.

    A note that is not `needed` is left out if each place is on another text or nearer to another note's point.
    """

    x: float
    y: float
    text: str
    colour: str
    places: Sequence[tuple[float, float, str, str]]
    needed: bool = True


RIGHT = [(7.0, float(shift), "left", "center") for shift in (0, -6, 6, -12, 12, -18, 18, -24, 24, -32, 32, -40, 40)]
UNDER = [(7.0, float(shift), "left", "center") for shift in range(0, -90, -6)]  # of a label below another
ABOVE = [(float(shift), 6.0, side, "bottom") for shift, side in ((0, "center"), (-3, "right"), (3, "left"))]
BELOW = [(float(shift), -6.0, side, "top") for shift, side in ((0, "center"), (3, "left"), (-3, "right"))]


def place_notes(
    axes: Any, notes: Sequence[Note], obstacles: Sequence[tuple[Any, Any]] = (), *, may_cover: bool = True
) -> None:
    """Write each note where it overlaps no other text and covers as little as possible of `obstacles` (polylines).

    Unless it `may_cover` them, a note that is not needed is left out if it would cover more than a corner's length.
    """
    from matplotlib.text import Text

    figure = axes.figure
    texts = [
        axes.annotate(
            note.text,
            (note.x, note.y),
            xytext=note.places[0][:2],
            textcoords="offset points",
            ha=note.places[0][2],
            va=note.places[0][3],
            color=note.colour,
            annotation_clip=False,
        )
        for note in notes
    ]
    figure.draw_without_rendering()  # computes the layout, with room for these texts
    covered = _sampled(axes, obstacles)
    points = axes.transData.transform(np.reshape([(note.x, note.y) for note in notes], (-1, 2)))
    children = [child for child in axes.get_children() if isinstance(child, Text) and child not in texts]
    names = [part for axis in (axes.xaxis, axes.yaxis) for part in (axis.label, *axis.get_ticklabels())]
    written = [text for text in (*children, *names) if text.get_text() and text.get_visible()]
    boxes = [text.get_window_extent().padded(2) for text in written]
    for number, (note, text) in enumerate(zip(notes, texts, strict=True)):
        best = (math.inf, note.places[0], None)
        for place in note.places:
            text.set(position=place[:2], ha=place[2], va=place[3])
            box = text.get_window_extent()
            overlaps = sum(box.overlaps(neighbour) for neighbour in boxes)
            gaps = np.hypot(*np.maximum(0, np.maximum(box.min - points, points - box.max)).T)  # pixels to each point
            overlaps += not note.needed and gaps.min() < gaps[number] - 1
            inside = (covered > (box.x0, box.y0)) & (covered < (box.x1, box.y1))
            crossed = int(inside.all(axis=1).sum())
            outside = max(0.0, axes.bbox.x0 - box.x0, box.x1 - figure.bbox.x1)
            score = 1000.0 * overlaps + 100.0 * outside + crossed
            if score < best[0]:
                best = (score, place, box.padded(0.5 * text.get_fontsize(), 0))  # a space between numbers of a line
        if not note.needed and best[0] >= (1000 if may_cover else 2):  # covered points, 3 px apart
            text.remove()
            continue
        text.set(position=best[1][:2], ha=best[1][2], va=best[1][3])
        boxes.append(best[2])


def _sampled(axes: Any, obstacles: Sequence[tuple[Any, Any]]) -> Any:
    """Return points in pixels, shape (n, 2), along the polylines and around their vertices, which have markers."""
    parts = [np.empty((0, 2))]
    for x, y in obstacles:
        points = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
        corners = axes.transData.transform(points[np.isfinite(points).all(axis=1)])
        parts += [corners + shift for shift in ((0, 0), (3, 0), (-3, 0), (0, 3), (0, -3))]
        for first, second in pairwise(corners):
            parts.append(np.linspace(first, second, max(2, int(np.hypot(*(second - first)) / 3))))
    return np.concatenate(parts)
