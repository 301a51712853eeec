"""Render a notebook as a page: one HTML file that works from disk and loads nothing.

The template in `template/` has no script, and its content security policy forbids scripts and loads. Before writing, a
page is also searched for elements that load a remote URL, so that such a mistake is an error and not a blank. In a
table of many columns each cell gets its column's heading, so that a phone can show the row as a block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import __version__
from labkit.errors import LabkitError
from labkit.files import replacing
from workbook.records import utc_now
from workbook.report.elsewhere import with_devices_linked
from workbook.report.glossary import with_words_linked
from workbook.show import theme_css
from workbook.show.table import EMPTY
from workbook.show.templates import environment

if TYPE_CHECKING:
    from bs4 import Tag

TEMPLATE = Path(__file__).resolve().parent / "template"

_TERMINAL = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a title or a hyperlink
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # a colour or a cursor movement
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
# A URL with a host in an attribute of an element that loads the URL. `a` and `area` load nothing, nor does a text: the
# first expression also finds a tag in a quoted text.
_REMOTE = re.compile(
    r"""<(?!a\b|area\b)[a-z]+\b[^>]*?\s(?:src|srcset|href|xlink:href|poster|data)\s*=\s*["']?\s*(?:[a-z+.-]+:)?//""",
    re.I,
)
_LOADING = ("src", "href", "xlink:href", "poster", "data")
_ADDRESS = re.compile(r"(?:[a-z+.-]+:)?//\S+", re.I)

_CITED = re.compile(r'<span data-figure="(?P<name>[\w-]+)"></span>')
_EMPHASISED = re.compile(r"<em>([^<]+)</em>")
_TITLE = re.compile(r"<title>(.*?)</title>", re.S)

# Tables for a phone: the stylesheet shows rows as blocks where a table with many columns has little room.
STACKED = "lk-stack"
FITTING = "lk-choose"  # many columns, but short ones that fit on a phone
ABREAST = 3  # columns that fit side by side on a phone
_TABLE = re.compile(r"<table\b(?:(?!<table\b).)*?</table>", re.S)  # parsing a whole page takes a second


def render_notebook(
    notebook: Path,
    page: Path,
    *,
    title: str,
    device: str,
    profile: str,
    strip: dict[str, str],
    links: list[tuple[str, str]],
    records: str = "",
    shown: str = "",
    around: Sequence[tuple[str, str]] = (),
    named: Mapping[str, str] | None = None,
) -> None:
    """Write the page of a notebook, whether it ran, failed or never ran.

    Cells with the tags `setup`, `answer`, `figure`, `table`, `verdicts`, `limits` and `more` make the page's parts; all
    other cells fold under "Method and checks". `title` names the study and `device` the profile. `strip` is the
    provenance (label -> value), and `links` are (address, text) pairs in the head. `records` is the address of the raw
    data, and `shown` names them. `around` are links to other studies below the page, and `named` are addresses by the
    title that a text emphasises. Texts are escaped; only text/html
    outputs and the notebook's Markdown are markup.
    Raise LabkitError, and write nothing, if the notebook can't be read or rendered, or the page would load a URL.
    """
    import nbformat
    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import InvalidNotebook

    try:
        node = nbformat.read(notebook, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise LabkitError(f"{notebook} can't be read as a notebook: {error}. Run the study again.") from error
    _leave_out_explanations(node)
    exporter = HTMLExporter(
        template_name=TEMPLATE.name,
        extra_template_basedirs=[str(TEMPLATE.parent)],
        embed_images=True,
        exclude_anchor_links=True,
    )
    jinja = exporter.environment
    jinja.autoescape = True  # nbconvert's default is off; this template relies on escaping
    jinja.filters |= {"plain": plain, "focusable": focusable}
    about_page = {
        "title": title,
        "heading": _take_title(node) or title,
        "device": device,
        "profile": profile,
        "notebook": notebook.name,
        "strip": strip,
        "records": records,
        "home": dict(links).get("index.html", ""),
        "links": [link for link in links if link[0] != "index.html"],
        "notice": _notice(node, shown),
        "around": around,
    }
    jinja.globals |= {"page": about_page, "theme_css": theme_css()}
    about = {"metadata": {"name": notebook.stem, "path": str(notebook.resolve().parent)}}
    try:
        text, _ = exporter.from_notebook_node(node, about)
    except (OSError, InvalidNotebook) as error:  # a picture that can't be read, an attachment that is missing
        raise LabkitError(f"{notebook.name} can't be rendered: {error}. Mend the notebook's pictures.") from error

    def linked(title: re.Match[str]) -> str:
        address = (named or {}).get(title[1], page.name)
        return title[0] if address == page.name else f'<a href="{address}">{title[0]}</a>'

    write_page(page, _EMPHASISED.sub(linked, text))


def write_template(page: Path, template: str, **values: Any) -> None:
    """Render a template of `template/`, escaped except Markup, and write the page atomically.

    Raise LabkitError if the page would load an external URL.
    """
    write_page(page, environment(TEMPLATE).get_template(template).render(theme_css=theme_css(), **values))


def write_page(page: Path, text: str) -> None:
    """Write a page atomically, with links to the glossary and to other devices, and with citations of its figures.

    Raise LabkitError if it would load an external URL.
    """
    if urls := external_urls(text):
        raise LabkitError(
            f"{page.name} was not written, because it would load {', '.join(urls[:5])}"
            f"{' and more' if len(urls) > 5 else ''}: a page must work without a network. Embed it, or link to it."
        )
    with replacing(page) as new:
        linked = with_words_linked(with_citations(with_devices_linked(page, text)))
        new.write_text(with_stacked_tables(linked), encoding="utf-8", errors="replace")


def with_citations(text: str) -> str:
    """Return a page with a citation in the place of each figure's mark: workbook, page, device, figure and day.

    >>> with_citations('<title>Training — H200</title><span data-figure="rates"></span>')  # doctest: +ELLIPSIS
    '<title>Training — H200</title>Cite as: labkit ..., “Training — H200”, figure rates, ...'
    """
    title = found[1].strip() if (found := _TITLE.search(text)) else ""
    return _CITED.sub(
        lambda mark: f"Cite as: labkit {__version__}, “{title}”, figure {mark['name']}, {utc_now()[:10]}.", text
    )


def _take_title(notebook: Any) -> str:
    """Take the title, a first line `# …`, out of a notebook's first cell and return it; "" without one."""
    for cell in notebook.cells[:1]:
        line, _, rest = cell.source.partition("\n")
        if cell.cell_type == "markdown" and line.startswith("# "):
            cell.source = rest
            return str(line.removeprefix("# "))
    return ""


def _leave_out_explanations(node: Any) -> None:
    """Leave only the heading of a text whose figure or table, in the next cell with the tag `more`, has no value."""
    for text, cell in pairwise(node.cells):
        shown = [output.data.get("text/html", "") for output in cell.get("outputs", []) if "data" in output]
        is_empty = bool(shown) and all(re.search(rf'class="[^"]*\b{EMPTY}\b', part) for part in shown)
        if is_empty and text.cell_type == "markdown" and "more" in cell.metadata.get("tags", []):
            heading = text.source.partition("\n")[0]
            text.source = heading if heading.startswith("#") else ""


def focusable(markup: str) -> str:
    """Return highlighted code that the keyboard can scroll."""
    return markup.replace("<pre>", '<pre tabindex="0">', 1)


def plain(text: str) -> str:
    """Return text as a terminal shows it: without colours, control characters and overwritten parts of lines."""
    lines = _TERMINAL.sub("", text).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _notice(node: Any, shown: str) -> dict[str, str] | None:
    """Return the notice at the top of the page if a cell failed or did not run, else None.

    It names the first failed cell by its number in JupyterLab, and the records that it had.
    """
    cells = [cell for cell in node.cells if cell.cell_type == "code" and cell.source.strip()]
    unrun = sum(cell.get("execution_count") is None for cell in cells)
    errors = [(cell, output) for cell in cells for output in cell.outputs if output.output_type == "error"]
    count = f"{unrun} code cell{'s' if unrun > 1 else ''} did not run"
    if errors:
        cell, error = errors[0]
        message = plain(f"{error.ename}: {error.evalue}")
        message = message if len(message) <= 300 else f"{message[:300]} …"
        place = f"Cell [{cell.execution_count}] failed{f' with {shown}' if shown else ''}: "
        rest = f" {count}." if unrun else ""
        return {"kind": "failed", "text": f"{place}{message.rstrip('.')}.{rest}", "link": "error"}
    if cells and unrun == len(cells):
        return {"kind": "unrun", "text": "This notebook has not been run: here are its text and its code."}
    return {"kind": "failed", "text": f"The run stopped early: {count}."} if unrun else None


def external_urls(text: str) -> list[str]:
    """Return the URLs with a host that elements of a page load. The page's security policy blocks these and others."""
    if not _REMOTE.search(text):  # parsing takes a second for a large page
        return []
    from bs4 import BeautifulSoup  # nbconvert needs it too

    elements = BeautifulSoup(text, "html.parser").find_all(lambda tag: tag.name not in ("a", "area"))
    values = [str(tag.get(name, "")) for tag in elements for name in _LOADING]
    values += [part for tag in elements for part in str(tag.get("srcset", "")).split(",")]
    return list(dict.fromkeys(found[0] for value in values if (found := _ADDRESS.match(value.strip()))))


def with_stacked_tables(page: str) -> str:
    """Return a page whose tables of more than ABREAST columns have the class STACKED and a heading in each cell."""
    return _TABLE.sub(lambda found: _stacked(found[0]), page)


def _stacked(markup: str) -> str:
    from bs4 import BeautifulSoup  # nbconvert needs it too

    soup = BeautifulSoup(markup, "html.parser")
    (table,) = soup.find_all("table")
    headings, classes = _headings(table), [*filter(None, table.get_attribute_list("class"))]
    if len(headings) <= ABREAST or FITTING in classes:
        return markup
    table["class"] = " ".join([*classes, STACKED])
    rows = [row for row in table.find_all("tr") if not row.find_parent("thead")]
    _repeat(rows)
    for row in rows:
        for place, (cell, heading) in enumerate(zip(_cells(row), headings, strict=False)):
            if cell.has_attr("colspan"):
                break
            if heading and (place or cell.get_text(strip=True)[:1].isdigit()):  # a row's name needs no heading
                cell["data-label"] = heading
    return str(soup)


def _cells(row: Tag) -> Sequence[Tag]:
    return row.find_all(["th", "td"])


def _headings(table: Tag) -> list[str]:
    """Return the heading of each column. Those of several rows are joined; pandas names the index in the last row."""
    rows = [
        [_text(cell) for cell in _cells(row) for _ in range(_span(cell, "colspan"))] for row in table.select("thead tr")
    ]
    names = rows.pop() if len(rows) > 1 and not rows[-1][-1] else []
    joined = [", ".join(filter(None, parts)) for parts in zip(*rows, strict=False)]
    return [*(name or heading for name, heading in zip(names, joined, strict=False)), *joined[len(names) :]]


def _span(cell: Tag, name: str) -> int:
    """Return the number of columns or rows of a cell, at most 1,000 as in HTML."""
    text = str(cell.get(name, ""))
    return min(int(text), 1000) if text.isdecimal() else 1


def _text(heading: Tag) -> str:
    """Return a heading's text, with a comma before its unit."""
    parts = [f", {text}" if text.find_parent("small") else str(text) for text in heading.find_all(string=True)]
    return " ".join("".join(parts).split()).replace(" ,", ",")


def _repeat(rows: Sequence[Tag]) -> None:
    """Repeat a cell that spans several rows in each of them, hidden except in blocks."""
    for number, row in enumerate(rows):
        for place, cell in enumerate(_cells(row)):
            if cell.has_attr("hidden"):
                continue
            for below in rows[number + 1 : number + _span(cell, "rowspan")]:
                copy = cell.__copy__()
                del copy["rowspan"]
                copy["hidden"] = ""
                below.insert(0, copy) if place == 0 else _cells(below)[place - 1].insert_after(copy)
