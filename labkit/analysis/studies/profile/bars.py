"""Stacked bars: a panel a network and input, a bar a batch, tuned engines beside; what several pictures here share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.analysis.draw import legend_above, panels, tidy
from labkit.analysis.figure import LIGHT, Theme
from labkit.analysis.studies.profile import seen
from labkit.recipes import engine_name, is_plain
from labkit.trial import Trial

COLUMNS = 3
MANY = 7  # bars of a panel: with more, panels stand two in a row
WIDTH = 0.8  # of a bar
HEAD = 1.12  # of the highest bar: what stands over it
ROW_IN, REST_IN = 2.15, 1.3


@dataclass(frozen=True)
class Look:
    """How a part is drawn: its place in the palette, else a shade of the ink (0 none, 1 full); and its hatching."""

    colour: int | None = None
    shade: float = 0.0
    hatch: str = ""

    def style(self, theme: Theme) -> dict[str, Any]:
        """The words of matplotlib."""
        from matplotlib.colors import to_rgba

        face = theme.palette[self.colour] if self.colour is not None else (*to_rgba(theme.ink)[:3], self.shade)
        # A hatch on a colour is dark in both schemes: the palette for dark grounds is too light for its ink.
        line = LIGHT.ink if self.colour is not None else theme.ink
        return {"facecolor": face, "edgecolor": line if self.hatch else "none", "hatch": self.hatch, "lw": 0.4}


@dataclass(frozen=True)
class Bars:
    """What to draw: the parts of each trial that has any, in the order of `looks`; the others have a cross."""

    trials: Sequence[Trial]
    parts: Mapping[Trial, Mapping[str, float]]
    looks: Mapping[str, Look]
    along: str  # what stands under the panels
    label: str  # what the heights are
    over: Callable[[Trial], str]  # what stands over a bar
    highest: float | None = None  # of all panels; without it each has its own scale

    @property
    def settings(self) -> list[str]:
        """A panel each."""
        return list(dict.fromkeys(seen.setting(trial) for trial in self.trials))

    @property
    def shown(self) -> list[str]:
        """The parts that any trial has."""
        return [part for part in self.looks if any(one.get(part) for one in self.parts.values())]

    @property
    def size_in(self) -> tuple[float, float]:
        """Of the picture."""
        return 8.0, REST_IN + ROW_IN * -(-len(self.settings) // self.columns)

    @property
    def columns(self) -> int:
        """Panels in a row."""
        return COLUMNS if max(Counter(map(seen.setting, self.trials)).values(), default=0) <= MANY else 2

    def draw(self, figure: Any, theme: Theme) -> None:
        """All panels, with one legend."""
        grid = panels(figure, len(self.settings), self.columns)
        for place, (axes, setting) in enumerate(zip(grid, self.settings, strict=True)):
            self._panel(axes, theme, [trial for trial in self.trials if seen.setting(trial) == setting])
            axes.set_title(setting, fontsize=9.5, color=theme.ink)
            axes.tick_params(axis="y", labelleft=self.highest is None or place % self.columns == 0)
            tidy(axes, theme)
        for part in self.shown:
            grid[0].bar([0], [0], label=part, **self.looks[part].style(theme))
        figure.supxlabel(self.along, fontsize=9, color=theme.ink)
        figure.supylabel(self.label, fontsize=9, color=theme.ink)
        legend_above(figure, grid)

    def _panel(self, axes: Any, theme: Theme, trials: Sequence[Trial]) -> None:
        """A bar a trial, the papers' loop first."""
        ordered = sorted(trials, key=lambda trial: (not is_plain(trial), engine_name(trial), trial.batch))
        sums = {trial: sum(self.parts[trial].values()) for trial in ordered if trial in self.parts}
        top = self.highest or max(sums.values(), default=1.0) or 1.0
        for place, trial in enumerate(ordered):
            if trial not in sums:
                axes.plot([place], [0.04 * top], "x", color=theme.ink, ms=7, mew=1.6)
                continue
            below = 0.0
            for part in self.shown:
                height = self.parts[trial].get(part, 0.0)
                axes.bar([place], [height], WIDTH, bottom=[below], **self.looks[part].style(theme))
                below += height
            axes.annotate(self.over(trial), (place, below + 0.02 * top), ha="center", fontsize=7, color=theme.ink)
        axes.set_xticks(range(len(ordered)), [f"{trial.batch:,}" for trial in ordered], fontsize=7.5)
        for engine in dict.fromkeys(engine_name(trial) for trial in ordered if not is_plain(trial)):
            places = [place for place, trial in enumerate(ordered) if engine_name(trial) == engine]
            _engine_under(axes, engine, places, theme)
        axes.set_xlim(-0.6, max(len(ordered), 3) - 0.4)
        axes.set_ylim(0, HEAD * top)


def _engine_under(axes: Any, engine: str, places: Sequence[int], theme: Theme) -> None:
    """A tuned engine, once under its bars; what is too long for a single one in two lines, one line lower."""
    narrow = len(places) == 1 and "+" in engine
    words = engine.replace("+", "\n+") if narrow else engine
    at, below = (sum(places) / len(places), 0), -27 if narrow else -17
    axes.annotate(
        words,
        at,
        (0, below),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7,
        color=theme.ink,
    )
