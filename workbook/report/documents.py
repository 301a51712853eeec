"""The documents of `docs/` that readers of a site need: a page for each.

Links between these documents lead to their pages. A site is also read without the repository, so other links to its
files become plain text.
"""

from __future__ import annotations

import posixpath
import re
from html import escape
from typing import Any, Final

import mistune
from markupsafe import Markup

from workbook.paths import ROOT

OWN_NETWORK: Final = "own_network.html"
HELPERS: Final = "labkit.html"  # two other documents link it: the navigation has one line on a screen of 1,280 pixels
# The page of a document -> its file and its name in the navigation.
DOCUMENTS: Final = {
    "reviewing.html": ("docs/reviewing.md", "Check it yourself"),
    OWN_NETWORK: ("docs/own_network.md", "Your own network"),
    "options.html": ("docs/options.md", "Options"),
    HELPERS: ("docs/labkit.md", "labkit"),
}
_SECTION = re.compile(r'<h2 id="([^"]+)">(.+?)</h2>')
_PAGES = {file: page for page, (file, _) in DOCUMENTS.items()} | {"docs/glossary.md": "glossary.html"}


def title_and_text(page: str) -> tuple[str, Markup]:
    """Return the heading of a page's document, and links to its sections before the rest of the document, as HTML."""
    file = DOCUMENTS[page][0]
    heading, _, text = (ROOT / file).read_text(encoding="utf-8").partition("\n")
    to_html = mistune.create_markdown(renderer=_Page(posixpath.dirname(file)), plugins=["table"])
    body = str(to_html(text))
    sections = " · ".join(f'<a href="#{place}">{name}</a>' for place, name in _SECTION.findall(body))
    page = f'<p class="lk-soft">On this page: {sections}</p>{body}'
    return heading.removeprefix("# "), Markup(page)  # noqa: S704 - the renderer escapes texts


class _Page(mistune.HTMLRenderer):
    """HTML of a document in a folder of the repository, with the tables of the other pages."""

    def __init__(self, folder: str) -> None:
        super().__init__(escape=True)
        self._folder = folder

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        """Return a heading with the anchor that GitHub gives it."""
        return super().heading(text, level, **attrs | {"id": anchor_of(text)})

    def link(self, text: str, url: str, title: str | None = None) -> str:  # noqa: ARG002 - mistune's signature
        """Return a link to the web, to a page of the site or to a section of this page, or the text alone."""
        if url.startswith("#"):
            return f'<a href="{escape(url)}">{text}</a>'
        is_elsewhere = url.startswith("https://")
        file, _, place = url.partition("#")
        page = url if is_elsewhere else _PAGES.get(posixpath.normpath(posixpath.join(self._folder, file)))
        anchor = f"#{place}" if page and place and not is_elsewhere else ""
        return f'<a href="{escape(page + anchor)}">{text}</a>' if page else text

    def table(self, text: str) -> str:
        """Return a table that scrolls in its frame."""
        return (
            f'<div class="lk-scroll" role="region" tabindex="0" aria-label="table"><table class="lk-table">{text}'
            "</table></div>"
        )

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        """Return a cell; a column that is aligned to the right has numbers."""
        if head:
            return f'<th scope="col">{text}</th>'
        return f'<td class="{"n" if align == "right" else "lk-words"}">{text}</td>'


def anchor_of(heading: str) -> str:
    """Return the anchor of a section, as GitHub forms it.

    >>> anchor_of("Slurm: device files and jobs")
    'slurm-device-files-and-jobs'
    """
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def documents() -> list[tuple[str, str]]:
    """Return links (address, name) to the documents of the navigation."""
    return [(page, name) for page, (_, name) in DOCUMENTS.items() if page != HELPERS]
