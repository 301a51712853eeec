"""What pictures have in common: points with intervals, rows without a result, sizes on a log axis, panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis.figure import Theme

# Engines by how they are drawn: place in the palette, marker, line.
ENGINES: dict[str, tuple[int, str, str]] = {
    "plain": (0, "o", "-"),
    "eager": (0, "o", "-"),
    "fused": (1, "D", "--"),  # on a CPU, which has no graphs
    "graph": (1, "s", "--"),
    "compile": (2, "^", ":"),
    "compile+graph": (2, "^", "-."),
    "openvino": (3, "P", "--"),
    "triton+graph": (4, "X", "-."),
    "function": (3, "v", ":"),
    "xla": (4, "P", "-."),
}
TICKS = 7  # so many numbers fit under a panel
Bars = list[list[float]]


def tidy(axes: Any, theme: Theme, *, grid: str = "") -> None:
    """Two spines, and a faint grid along `x`, `y` or `both`."""
    if grid:
        axes.grid(axis=grid, color=theme.faint, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def error_bars(data: pd.DataFrame, value: str = "value") -> Bars | None:
    """Matplotlib's (below, above) from columns `low` and `high`; zero where there is no interval, None without any."""
    if data["low"].isna().all():
        return None
    point, low, high = (data[name].astype(float) for name in (value, "low", "high"))
    return [list((point - low).fillna(0)), list((high - point).fillna(0))]


def points(
    axes: Any,
    places: Sequence[float],
    data: pd.DataFrame,
    *,
    colour: str,
    marker: str,
    line: str = "none",
    label: str | None = None,
    across: bool = False,
    fill: str = "full",
) -> None:
    """The rows of `data` that have a `value`, with their intervals; `across` lays the values along x.

    `fill` is matplotlib's word for how much of a marker is filled.
    """
    known = data["value"].notna().to_numpy()
    if not known.any():
        return
    at = [place for place, there in zip(places, known, strict=True) if there]
    shown = data[known]
    bars = error_bars(shown)
    style = {"color": colour, "marker": marker, "ls": line, "ms": 6, "lw": 1.4, "capsize": 3, "label": label}
    style["fillstyle"] = fill
    values = shown["value"].astype(float)
    if across:
        axes.errorbar(values, at, xerr=bars, **style)
    else:
        axes.errorbar(at, values, yerr=bars, **style)


def no_result(axes: Any, places: Sequence[float], colour: str, height: float = 0.04, *, across: bool = False) -> None:
    """A cross for each trial without a result, at a height of the axes where none with one would stand.

    `across`: values lie along x, so the crosses stand near the left edge.
    """
    if len(places):
        heights = [height] * len(places)
        axes.plot(
            *((heights, places) if across else (places, heights)),
            "x",
            color=colour,
            ms=8,
            mew=2,
            transform=axes.get_yaxis_transform() if across else axes.get_xaxis_transform(),
            clip_on=False,
        )


def sizes_axis(axes: Any, sizes: Sequence[int], label: str) -> None:
    """A log axis that names sizes that were measured, not powers of ten."""
    ordered = sorted(set(sizes))
    every = -(-len(ordered) // TICKS)
    axes.set_xscale("log")
    axes.set_xticks(ordered[::every], [f"{size:,}" for size in ordered[::every]])
    axes.minorticks_off()
    axes.set_xlim(ordered[0] / 1.5, ordered[-1] * 1.5)
    axes.set_xlabel(label)


def thousands(axes: Any, along: str) -> None:
    """Numbers along a linear axis with their thousands parted."""
    from matplotlib.ticker import FuncFormatter

    getattr(axes, f"{along}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def log_axis(axes: Any, along: str) -> None:
    """A log scale along `x` or `y` whose numbers are numbers, once everything on it is drawn."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{along}scale")("log")
    axis = getattr(axes, f"{along}axis")
    low, high = axis.get_view_interval()
    wide = low > 0 and high / low > 1000  # three decades need no numbers between the powers of ten
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


def panels(figure: Any, count: int, columns: int, **sharing: Any) -> list[Any]:
    """So many axes in rows of `columns`; those left over are off."""
    columns = min(count, columns)
    grid = figure.subplots(-(-count // columns), columns, squeeze=False, **sharing).ravel()
    for axes in grid[count:]:
        axes.set_axis_off()
    return list(grid[:count])


def legend_above(figure: Any, axes: Sequence[Any], *, ncols: int = 5, order: Sequence[str] = ()) -> None:
    """One legend for all axes, each label once: those in `order` first, as they stand there."""
    found: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        named = {label: found[label] for label in order if label in found} | found
        figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=ncols, fontsize=8.5)
