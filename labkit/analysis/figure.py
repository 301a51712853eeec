"""A figure as a reader needs it: the picture in light and dark, a caption, a text for those who can't see it, the data.

In a notebook a Figure shows itself as HTML that loads nothing: two inlined SVGs, of which the reader's colour scheme
picks one, and the numbers behind it in a folded table.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.analysis.table import table_html

# Okabe & Ito's palette, told apart with every common colour vision, the black one replaced by the theme's ink.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
# The same hues, lighter, for lines on a dark ground.
PALETTE_ON_DARK = ("#56A8DD", "#F28A3C", "#2FC79B", "#E39BC4", "#F2BC4B", "#9BD3F5", "#F5EA7A")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Theme:
    """The colours that change between light and dark."""

    ink: str
    faint: str
    palette: tuple[str, ...]


LIGHT = Theme(ink="#1d2330", faint="#c9ced8", palette=PALETTE)
DARK = Theme(ink="#e4e8f0", faint="#475063", palette=PALETTE_ON_DARK)

# Two pictures of which one is shown, and not <picture>: printed from a dark screen, that keeps the dark one.
SCHEMES = (
    ".lk-dark{display:none}@media screen and (prefers-color-scheme:dark)"
    "{.lk-light{display:none!important}.lk-dark{display:block!important}}"
)

Draw = Callable[[Any, Theme], None]


@dataclass(frozen=True)
class Figure:
    """`draw(figure, theme)` paints on an empty matplotlib figure; `data` holds the numbers that it shows."""

    name: str
    draw: Draw
    caption: str
    alt: str
    data: pd.DataFrame
    size_in: tuple[float, float] = (8.0, 3.6)
    again: str = ""  # the command that makes it again

    def svg(self, theme: Theme = LIGHT) -> str:
        """The picture as SVG, text as outlines so that it looks alike everywhere."""
        import matplotlib as mpl
        import seaborn as sns
        from cycler import cycler
        from matplotlib.figure import Figure as Canvas

        style = {
            **sns.axes_style("ticks"),
            **sns.plotting_context("paper", font_scale=1.05),
            **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.ink),
            **dict.fromkeys(("axes.edgecolor", "grid.color", "legend.edgecolor"), theme.faint),
            "axes.facecolor": "none",
            "figure.facecolor": "none",
            "savefig.facecolor": "none",
            "legend.frameon": False,
            "svg.fonttype": "path",
            "text.parse_math": False,  # a title with a dollar sign is text
            "svg.hashsalt": self.name,  # the same picture gives the same bytes
            "axes.prop_cycle": cycler(color=theme.palette),
        }
        with mpl.rc_context(style):
            canvas = Canvas(figsize=self.size_in, layout="constrained")
            self.draw(canvas, theme)
            buffer = io.StringIO()
            canvas.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        light, dark = (_data_uri(self.svg(theme)) for theme in (LIGHT, DARK))
        text, alt = html.escape(self.caption), html.escape(self.alt)
        command = html.escape(self.again)
        again = f'<p class="lk-again">Again: <code>{command}</code></p>' if command else ""
        return {
            "text/plain": self.caption,
            "text/html": (
                f'<figure class="lk-figure" id="figure-{html.escape(self.name)}">'
                f'<style>{SCHEMES}</style><div class="lk-scroll" role="region" tabindex="0" '
                f'aria-label="{html.escape(self.name)}"><img class="lk-light" src="{light}" alt="{alt}">'
                f'<img class="lk-dark" src="{dark}" alt="{alt}"></div>'
                f"<figcaption>{text}</figcaption>"
                f"<details><summary>The numbers in this figure</summary>"
                f"{table_html(self.data, label=f'Numbers of {self.name}')}</details>"
                f"{again}</figure>"
            ),
        }


def _data_uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
