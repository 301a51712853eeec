"""The picture of scaling: images/s over those of one device against the number of devices, beside what is linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, no_result, panels, points, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import number
from labkit.analysis.studies.multi_gpu.scaling import rows
from labkit.analysis.table import Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import SCALINGS, Trial

LINES = {"weak": "-", "strong": "--"}
COLUMNS = 2


def speed_ups(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The speed-up over one device against the number of devices: a panel a network and engine, a line a scaling."""
    data = rows(results, trials)
    if not len(data) or (data["devices"] == 1).all():
        return Text("Nothing was measured on several devices, so there is no picture of scaling.")
    several = data[data["devices"] > 1]
    settings = list(dict.fromkeys(several.loc[several["value"].notna() | several["failed"].notna(), "setting"]))
    if not settings:
        return Text("No training on several devices stands beside one on a single device: no picture of scaling.")
    data = data[data["setting"].isin(settings)]
    most = int(data["devices"].max())

    def draw(figure: Any, theme: Theme) -> None:
        grid = panels(figure, len(settings), COLUMNS, sharex=True, sharey=True)
        for axes, setting in zip(grid, settings, strict=True):
            of_setting = data[data["setting"] == setting]
            axes.plot([1, most], [1, most], color=theme.ink, lw=1, ls=":", label="linear")
            for index, scaling in enumerate(SCALINGS):
                shared = of_setting[(of_setting["devices"] > 1) & (of_setting["scaling"] == scaling)]
                if not len(shared):
                    continue
                one = of_setting[of_setting["devices"] == 1]
                line = shared if not len(one) else _with_one(one, shared)
                style: dict[str, Any] = {
                    "colour": theme.palette[index * 2],
                    "marker": MARKERS[index],
                    "line": LINES[scaling],
                }
                points(axes, list(line["devices"]), line, label=f"{scaling} scaling", **style)
                lost = shared["devices"][shared["failed"].notna()]
                no_result(axes, list(lost), theme.palette[index * 2])
            axes.set_xticks(sorted(set(map(int, data["devices"]))))
            axes.set_xlim(0.8, most + 0.2)
            axes.set_ylim(0, None)
            axes.set_title(setting, fontsize=9.5, color=theme.ink)
            tidy(axes, theme, grid="y")
        for axes in grid:
            axes.label_outer()
        figure.supxlabel("devices", fontsize=9, color=theme.ink)
        figure.supylabel("images/s over those of one device", fontsize=9, color=theme.ink)
        legend_above(figure, grid)

    known = data[data["devices"] > 1].dropna(subset=["value"])
    ends = (
        f"from {number(known['value'].astype(float).min())}x to {number(known['value'].astype(float).max())}x"
        if len(known)
        else "none has a result"
    )
    return Figure(
        name="scaling",
        draw=draw,
        again=results.again,
        caption="Speed-up over one device, formed within each pass: weak scaling holds each device's batch, strong "
        f"scaling the total batch.{engines.failures_sentence(results, list(trials))} "
        f"{engines.conditions(results, list(trials))}. Bars: 95 % interval.",
        alt=f"Line plots of the speed-up against the number of devices, a panel a network and engine, {ends}.",
        data=data.drop(columns=["failed"] if data["failed"].isna().all() else []),
        size_in=(8.0, 1.3 + 2.4 * -(-len(settings) // COLUMNS)),
    )


def _with_one(one: Any, several: Any) -> Any:
    """A line begins at one device, whose speed-up over itself is 1."""
    import pandas as pd

    first = one.head(1).assign(value=1.0, low=None, high=None, scaling=several["scaling"].iloc[0])
    return pd.concat([first.astype(object), several.astype(object)])
