"""A figure for pages and notebooks: a matplotlib drawing, its texts, and the numbers behind it.

A page shows one inline SVG whose colours are CSS variables, so that the figure follows the reader's colour scheme.
JupyterLab and PDF files show the fallback colours, those of the light scheme, on white.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from markupsafe import Markup

from labkit.errors import UserError
from workbook.results import is_report
from workbook.show.frames import configuration, numbers
from workbook.show.table import table_html
from workbook.show.templates import drawn
from workbook.words import NOT_MEASURED, heading, lacks_subject, lacks_value

# Name of a CSS variable (`--lk-ink`) -> its colour on a light and on a dark ground. Every text colour except `faint`
# has a contrast of 4.5 or more. c1 to c5 differ in lightness too. Green, red and amber are reserved for verdicts.
COLOURS = MappingProxyType(
    {
        "ink": ("#1d2330", "#e4e8f0"),
        "soft": ("#566072", "#a5afc0"),
        "faint": ("#d5dae3", "#384152"),
        "ground": ("#ffffff", "#151a23"),
        "baseline": ("#6b7280", "#9aa4b2"),
        "optimised": ("#c2410c", "#fb923c"),
        "between": ("#0b74b5", "#58b0ea"),
        "c1": ("#7a1560", "#f2b3e0"),
        "c2": ("#5c4a00", "#ece06a"),
        "c3": ("#4326d9", "#a06ff8"),
        "c4": ("#12345c", "#cfe3ff"),
        "c5": ("#0f6b78", "#6fe3ee"),
    }
)
SERIES = ("c1", "c2", "c3", "c4", "c5")
WIDTH_IN = 5.2  # width of a phone: 374 CSS pixels; one pixel is one point of the drawing
DPI = 72
SMALL_PT = 10.0  # texts for which the drawings are laid out
PAGE_PT = 12.6  # texts of a page, which a phone shows with 12 CSS pixels
_NAMES = {light: name for name, (light, _) in COLOURS.items()} | {"#000000": "ink"}
_FONT = "var(--lk-font, system-ui, 'DejaVu Sans', sans-serif)"
_OF_PROCESS = ("backend", "backend_fallback", "interactive")  # settings that are no looks
_PNG_COLOURS = 48
_MOST_ROWS = 300  # rows of a folded table


def colour(name: str) -> str:
    """Return the light-scheme colour to draw with; the SVG has the CSS variable `--lk-<name>` in its place."""
    return COLOURS[name][0]


def theme_css() -> str:
    """Return the CSS variables of both colour schemes. Print always uses the light scheme."""
    light, dark = ("".join(f"--lk-{name}:{pair[place]};" for name, pair in COLOURS.items()) for place in (0, 1))
    return f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def font_pt() -> float:
    """Return the size of a figure's texts in points: matplotlib's `font.size`, but always 12.6 in a report."""
    import matplotlib as mpl

    return PAGE_PT if is_report() else float(mpl.rcParams["font.size"])


@contextmanager
def styled(salt: str = "labkit") -> Iterator[None]:
    """Apply matplotlib's settings for the drawings of this package, also to a drawing of your own.

    All others are matplotlib's defaults, so that no `matplotlibrc` of a user changes a page. In JupyterLab all texts
    have the size of `matplotlib.rcParams["font.size"]`, in points.

    >>> with styled():
    ...     drawing = new_drawing()
    ...     _ = drawing.subplots().plot([1, 2], [3, 4])
    >>> Figure(drawing, name="mine", alt="A line", data=pd.DataFrame()).svg()[:4]
    '<svg'
    """
    import matplotlib as mpl
    from cycler import cycler

    ink, faint, size = colour("ink"), colour("faint"), font_pt()
    settings = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib; it is wide, so other fonts fit too
        "font.size": size,
        **{f"{part}size": size for part in ("axes.label", "axes.title", "figure.title", "legend.font")},
        **{f"{part}size": size for part in ("xtick.label", "ytick.label")},
        **dict.fromkeys(("text.color", "xtick.labelcolor", "ytick.labelcolor"), ink),
        **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), faint),
        **dict.fromkeys(("axes.labelcolor", "axes.titlecolor"), colour("soft")),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
        **dict.fromkeys(("xtick.major.size", "ytick.major.size", "xtick.minor.size", "ytick.minor.size"), 0.0),
        "axes.titlelocation": "left",
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=[colour(name) for name in SERIES]),
        "lines.linewidth": 2.0,
        "lines.markersize": 6.0,
        "legend.frameon": False,
        "text.parse_math": False,  # a dollar sign is text
        "svg.fonttype": "none",
        "svg.hashsalt": salt,  # the same drawing gives the same bytes
        "pdf.fonttype": 42,
    }
    defaults = {name: value for name, value in mpl.rcParamsDefault.items() if name not in _OF_PROCESS}
    with mpl.rc_context({**defaults, **settings}):
        yield


def new_drawing(width_in: float = WIDTH_IN, height_in: float = 3.3) -> Any:
    """Return an empty matplotlib figure that pyplot does not track."""
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(width_in, height_in), dpi=DPI, layout="constrained")


def slug(*words: str) -> str:
    """Return words as the name of a figure: `images_per_s`, `batch` -> `images-per-s-batch`."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", "-".join(words)).strip("-")


@dataclass
class Figure:
    """A drawing with its title (a finding), caption (at most 30 words), alternative text and numbers.

    `data` holds SI values; its columns `value`, `low` and `high` are values of `metric`.
    """

    drawing: Any
    name: str
    alt: str
    data: pd.DataFrame
    title: str = ""
    caption: str = ""
    metric: str = ""

    def __post_init__(self) -> None:
        self.title = self.title.removesuffix(".")
        if lacks_subject(self.title) and (self._is_empty or lacks_value(self.title)):
            self.title = f"{heading(self.metric)}: {NOT_MEASURED}" if self._is_empty else heading(self.metric)

    @property
    def _is_empty(self) -> bool:
        return "value" in self.data and bool(self.data["value"].isna().all())

    @property
    def axes(self) -> list[Any]:
        """The matplotlib axes, for changes in a notebook cell."""
        return list(self.drawing.axes)

    def save(self, path: str | Path) -> Path:
        """Write a .pdf, .png or .svg file with the title, in light colours. Equal drawings give equal bytes.

        Returns the path; other endings raise UserError. Change the drawing first through `axes` and `drawing`, which
        are matplotlib's.
        """
        path = Path(path)
        undated: dict[str, dict[str, None]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
        if path.suffix not in undated:
            raise UserError(f"a figure's file must end in {', '.join(undated)}: {path.name!r} has another ending.")
        with styled(self.name), self._titled():
            self.drawing.savefig(path, dpi=200, facecolor="white", metadata=undated[path.suffix])
        return path

    @contextmanager
    def _titled(self) -> Iterator[None]:
        """Write the title into the drawing, above its legend if it has one; pages write it above the drawing."""
        height_in, legend = self.drawing.get_figheight(), next(iter(self.drawing.legends), None)
        title = textwrap.fill(self.title, int(self.drawing.get_figwidth() * DPI / (0.72 * font_pt())))
        if legend:
            legend.set_alignment("left")
            legend.set_title(title, prop={"weight": "bold"})
        else:
            self.drawing.suptitle(title, x=0.01, ha="left", fontweight="bold")
        self.drawing.set_figheight(height_in + bool(title) * (1.3 * title.count("\n") + 2) * font_pt() / DPI)
        try:
            yield
        finally:
            self.drawing.set_figheight(height_in)
            if legend:
                legend.set_title(None)
            else:
                self.drawing._suptitle.remove()

    def svg(self) -> str:
        """Return one inline SVG element: colours are CSS variables, text is text, ids are unique within a page."""
        return _inline(self._svg_file(), self.name, self.alt)

    def _svg_file(self) -> str:
        """Return the drawing as a file of its own, in light colours and without the title."""
        buffer = io.StringIO()
        with styled(self.name):
            self.drawing.savefig(buffer, format="svg", facecolor="none", metadata={"Date": None})
        return buffer.getvalue()

    def _png_file(self) -> bytes:
        """Return the drawing with its title for slides, in light colours, of which few make the file small."""
        from PIL import Image

        whole, small = io.BytesIO(), io.BytesIO()
        with styled(self.name), self._titled():
            self.drawing.savefig(whole, format="png", dpi=2 * DPI, facecolor="white")
        Image.open(whole).convert("RGB").quantize(_PNG_COLOURS).save(small, "png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        frame, svg = numbers(self.data.head(_MOST_ROWS), self.metric), self._svg_file()
        table = self.data.assign(metric=self.metric).to_csv(index=False)
        page = drawn(
            "figure",
            self.name,
            Markup(_inline(svg, self.name, self.alt)),  # noqa: S704 - matplotlib and `_inline` escape it
            self.title,
            self.caption,
            self._missing(),
            "" if self.data.empty else table_html(frame, name=f"Numbers of {self.name}"),
            f" (first {_MOST_ROWS} of {len(self.data):,} rows)" if len(self.data) > _MOST_ROWS else "",
            [
                ("csv", _address("text/csv", table.encode())),
                ("svg", _address("image/svg+xml", svg.encode())),
                ("png", _address("image/png", self._png_file())),
            ],
            is_empty=self._is_empty,
        )
        return {"text/plain": f"{self.title or self.name}. {self.caption}".strip(), "text/html": page}

    def _missing(self) -> list[str]:
        """Return the configurations without a value, each with its reason."""
        if not {"value", "reason"} <= set(self.data):
            return []
        missing = self.data[self.data["value"].isna()].to_dict("records")
        return [f"{configuration(row)}: {row['reason']}" for row in missing]


def _address(kind: str, file: bytes) -> str:
    """Return an address that holds a file, for a link that saves it: it needs neither a script nor a request."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def _inline(svg: str, name: str, alt: str) -> str:
    """Return a matplotlib SVG file as an element of a page: smaller, with CSS colours and unique ids."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href=", "href=")
    digest = hashlib.sha256(body.encode()).hexdigest()[:6]
    own = f"{slug(name)}-{digest}-"
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', body))
    kept = {first or second for first, second in used}
    body = re.sub(r'\sid="([^"]*)"', lambda match: f' id="{own}{match[1]}"' if match[1] in kept else "", body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{own}", body)
    body = re.sub(r'\b(d|x|y|transform)="([^"]*)"', lambda match: f'{match[1]}="{_rounded(match[2])}"', body)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda match: _variable(match[0]), body)
    body = re.sub(r'(font: [^;"]*?[\d.]+px) [^;"]*', rf"\1 {_FONT}", body)
    width, height = (re.search(rf'{side}="([\d.]+)pt"', body) for side in ("width", "height"))
    assert width and height
    head = (
        f'<svg role="img" aria-label="{html.escape(alt)}" viewBox="0 0 {width[1]} {height[1]}" width="{width[1]}" '
        f'height="{height[1]}" xmlns="http://www.w3.org/2000/svg" stroke-linejoin="round" '
        f'style="max-width:100%;height:auto;background:{_variable(colour("ground"))};fill:{_variable(colour("ink"))}">'
    )
    return re.sub(r"\n\s*", "\n", head + body[body.index(">") + 1 :].strip())


def _variable(hexadecimal: str) -> str:
    """Return a colour of the scheme as its CSS variable with a fallback, and any other colour unchanged."""
    name = _NAMES.get(hexadecimal)
    return f"var(--lk-{name}, {COLOURS[name][0]})" if name else hexadecimal


def _rounded(numbers_of_path: str) -> str:
    return re.sub(r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", " ".join(numbers_of_path.split()))
