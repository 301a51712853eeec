"""Pictures of frameworks: the ratio to native PyTorch, images/s, what the first step takes, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, no_result, panels, points, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import number
from labkit.analysis.studies.frameworks.compared import (
    conditions,
    contested,
    engine,
    framework,
    over_native,
    rows,
)
from labkit.analysis.studies.frameworks.lacking import failures_sentence
from labkit.analysis.table import Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import FRAMEWORKS, PRECISIONS, Trial

COLUMNS = 2
# Of a log axis, up to which ratio of its ends which numbers of a decade are written.
STEPS = ((8.0, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)), (15.0, (1.0, 2.0, 5.0)), (225.0, (1.0, 3.0)))
ROW_IN = 0.26  # of a framework and engine
SHAPES = {name.upper(): MARKERS[place] for place, name in enumerate(PRECISIONS)}
COLOURS = {name: place for place, name in enumerate(FRAMEWORKS)}  # in the palette


class Mark(NamedTuple):
    """One kind of point in a picture: which rows of its data it is of, and how it is drawn."""

    label: str
    column: str
    value: Any
    marker: str
    fill: str = "full"


def ratios(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """A row a network, precision and class of engine: each framework's images/s over native PyTorch's."""
    found = []
    for cell, ranked in contested(results, trials).items():
        for trial in ranked:
            if ratio := over_native(results, trial):
                found.append(
                    {
                        "alike": cell.name,
                        "framework": framework(trial),
                        "engine": engine(trial),
                        **engines.ends(ratio),
                        "name": trial.framework,
                    }
                )
    if not found:
        return Text("No framework stands beside native PyTorch with a result, so there is no picture of their ratio.")
    data = pd.DataFrame(found)
    names = list(dict.fromkeys(data["alike"]))
    there = [name for name in FRAMEWORKS if name in set(data["name"])]
    beside = data["alike"].value_counts()

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for index, name in enumerate(there):
            one = data[data["name"] == name]
            shift = 0.5 * (index - (len(there) - 1) / 2) / max(1, len(there))
            places = [names.index(alike) + (shift if beside[alike] > 1 else 0) for alike in one["alike"]]
            style: dict[str, Any] = {"colour": theme.palette[COLOURS[name]], "marker": MARKERS[COLOURS[name]]}
            points(axes, places, one, label=str(one["framework"].iloc[0]), across=True, **style)
        axes.axvline(1, color=theme.ink, lw=1.2)
        axes.annotate(
            "PyTorch", (1, 1), (3, 2), xycoords=axes.get_xaxis_transform(), textcoords="offset points", fontsize=8,
            color=theme.ink, annotation_clip=False,
        )  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("images/s over native PyTorch's (log scale)")
        _log_axis_of_few(axes)
        tidy(axes, theme, grid="x")
        legend_above(figure, [axes], ncols=3)

    low, high = data["value"].astype(float).min(), data["value"].astype(float).max()
    return Figure(
        name="frameworks-over-pytorch",
        draw=draw,
        again=results.again,
        caption="Images/s over those of native PyTorch (the upright line), which trains the same network on the same "
        "batch in the same precision, eager beside eager and compiled beside compiled; of a framework with two "
        f"compiled engines the faster. Formed within each pass. {conditions(results, trials)}. Bars: 95 % interval.",
        alt=f"Dot plot on a log axis, a row a network, class of engine and precision: each framework's images per "
        f"second over native PyTorch's, from {number(low)} to {number(high)}.",
        data=data.drop(columns="name"),
        size_in=(8.0, 1.5 + 0.36 * len(names)),
    )


def rates(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s by framework and engine, a panel a network."""
    data = rows(results, trials, "images_per_s")
    if data["value"].isna().all():
        return Text("No trial gave a result, so there is no picture of images/s.")
    most = data.loc[data["value"].astype(float).idxmax()]
    return by_framework(
        data,
        precisions(data),
        name="frameworks-rates",
        label="images/s (log scale)",
        caption=f"Images/s by framework and engine.{failures_sentence(results, trials)} "
        f"{conditions(results, trials)}. Bars: 95 % interval.",
        alt=f"Dot plots on log axes, a panel a network, a row a framework and engine. The most: {most['how']} in "
        f"{most['precision']}, {most['setting']}, {number(most['value'])} images per second.",
        again=results.again,
    )


def precisions(data: pd.DataFrame) -> list[Mark]:
    """A mark for each precision."""
    there = set(data["precision"])
    return [Mark(name, "precision", name, SHAPES[name]) for name in SHAPES if name in there]


def by_framework(
    data: pd.DataFrame, marks: Sequence[Mark], *, name: str, label: str, caption: str, alt: str, again: str
) -> Figure:
    """A panel a setting, a row a framework and engine, a mark of `marks` each; a colour a framework.

    `data` has `setting`, `how`, `framework`, the columns of marks, `value`, `low`, `high` and `failed`.
    """
    settings = list(dict.fromkeys(data["setting"]))
    known = data.drop_duplicates("how")
    by_place = sorted(known["how"], key=list(known["how"]).index)
    of = dict(zip(known["how"], known["framework"], strict=True))
    ordered = sorted(by_place, key=lambda one: FRAMEWORKS.index(of[one]))

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(settings), COLUMNS, sharey=True)
        for place, (axes, setting) in enumerate(zip(grid, settings, strict=True)):
            panel = data[data["setting"] == setting]
            counts = panel["how"].value_counts()
            for index, mark in enumerate(marks):
                shift = 0.36 * (index - (len(marks) - 1) / 2) / max(1, len(marks) - 1)
                _draw_mark(axes, theme, panel[panel[mark.column] == mark.value], mark, ordered, shift, counts)
            axes.set_yticks(range(len(ordered)), ordered)
            axes.set_ylim(len(ordered) - 0.5, -0.5)
            for border in _borders(ordered, of):
                axes.axhline(border, color=theme.faint, lw=0.8)
            axes.set_title(setting, fontsize=9.5, color=theme.ink)
            _log_axis_of_few(axes)
            axes.tick_params(axis="y", labelleft=place % COLUMNS == 0)
            axes.set_xlabel(label, fontsize=8.5, color=theme.ink)
            tidy(axes, theme, grid="x")
        for mark in marks:
            grid[0].plot([], [], mark.marker, color=theme.ink, ms=6, fillstyle=mark.fill, label=mark.label)
        legend_above(figure, grid)

    deep = -(-len(settings) // COLUMNS)
    return Figure(
        name=name,
        draw=draw,
        again=again,
        caption=caption,
        alt=alt,
        data=data.drop(columns=["framework", *(["failed"] if data["failed"].isna().all() else [])]),
        size_in=(8.0, 1.1 + deep * (0.5 + ROW_IN * len(ordered))),
    )


def _log_axis_of_few(axes: Any) -> None:
    """A log axis under half a picture: as many numbers as fit, and more than powers of ten where it is short."""
    from matplotlib.ticker import LogLocator

    log_axis(axes, "x")
    low, high = axes.xaxis.get_view_interval()
    subs = next((subs for below, subs in STEPS if high / low < below), (1.0,))
    axes.xaxis.set_major_locator(LogLocator(subs=subs))


def _draw_mark(
    axes: Any, theme: Theme, part: pd.DataFrame, mark: Mark, ordered: list[str], shift: float, counts: pd.Series[int]
) -> None:
    """The points of one mark in a panel, framework by framework, and crosses for what gave no result.

    A row with one mark alone (`counts`) has it in its middle, others shifted.
    """
    for name in FRAMEWORKS:
        one = part[part["framework"] == name]
        places = [ordered.index(how) + (shift if counts[how] > 1 else 0) for how in one["how"]]
        colour = theme.palette[COLOURS[name]]
        points(axes, places, one, colour=colour, marker=mark.marker, across=True, fill=mark.fill)
        lost = [at for at, why in zip(places, one["failed"], strict=True) if isinstance(why, str)]
        no_result(axes, lost, colour, 0.03, across=True)


def _borders(ordered: list[str], of: dict[str, str]) -> list[float]:
    """Between the rows of two frameworks."""
    return [place + 0.5 for place in range(len(ordered) - 1) if of[ordered[place]] != of[ordered[place + 1]]]
