"""The glossary: the words of `docs/glossary.md`, and links to them from the prose of pages.

A page's text stays as it is. The parser only tells where prose stands, and links are put in there.
"""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from workbook.paths import ROOT

GLOSSARY = Path("docs/glossary.md")
PAGE = "glossary.html"
_ENTRY = re.compile(r"- \*\*(?P<name>.+?)\*\*(?: \((?P<forms>.+?)\))?: (?P<text>.+)")
_PROSE = ("p", "li")
_NO_PROSE = ("a", "code", "figure", "h1", "h2", "h3", "h4", "pre", "summary", "table")
_NO_TEXT = {"lk-title", "lk-shown", "lk-claim-head", "lk-notice"}  # classes of paragraphs that are no running text


class Word(NamedTuple):
    """A word of the glossary: its name, the forms that link to it, and what it means."""

    name: str
    forms: list[str]
    text: str

    @property
    def id(self) -> str:
        """The place of the word on the page of the glossary."""
        return self.name.lower().replace(" ", "-")


def glossary() -> list[Word]:
    """Return the words of the glossary, in the order of its file."""
    entries = _ENTRY.finditer((ROOT / GLOSSARY).read_text(encoding="utf-8"))
    return [Word(entry["name"], (entry["forms"] or entry["name"]).split(", "), entry["text"]) for entry in entries]


def with_words_linked(page: str) -> str:
    """Return a page whose prose links the first use of each word, if the page has a link to the glossary."""
    address = re.search(rf'href="([./]*{PAGE})"', page)
    return _Prose(page, address[1]).linked() if address else page


class _Prose(HTMLParser):
    """Finds the words in the prose of a page."""

    def __init__(self, page: str, address: str) -> None:
        super().__init__(convert_charrefs=False)
        self._page, self._address = page, address
        self._lines = [0, *accumulate(len(line) + 1 for line in page.split("\n"))]  # where each line begins
        self._id_of = {form.lower(): word.id for word in glossary() for form in word.forms}
        longest_first = sorted(self._id_of, key=len, reverse=True)
        forms = "|".join(map(re.escape, longest_first))
        self._forms = re.compile(
            rf"(?<![\w-])(?<!FP32 )(?:{forms})(?![\w-])", re.I
        )  # FP32 utilisation is a share of FLOP/s
        self._open: Counter[str] = Counter()
        self._is_prose = False
        self._uses: dict[str, tuple[int, str]] = {}  # id of a word -> place and form of its first use

    def linked(self) -> str:
        """Return the page with its links."""
        self.feed(self._page)
        parts, end = [], 0
        for word, (start, form) in self._uses.items():
            parts += [self._page[end:start], f'<a class="lk-term" href="{self._address}#{word}">{form}</a>']
            end = start + len(form)
        return "".join([*parts, self._page[end:]])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the start of an element with prose, or of one without."""
        if tag in _PROSE:
            self._is_prose = _NO_TEXT.isdisjoint((dict(attrs).get("class") or "").split())
        self._open[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Note the end of an element."""
        self._is_prose = self._is_prose and tag not in _PROSE
        self._open[tag] -= 1

    def handle_data(self, data: str) -> None:
        """Note the first use of each word in a text."""
        if not self._is_prose or any(self._open[tag] for tag in _NO_PROSE):
            return
        line, column = self.getpos()
        for use in self._forms.finditer(data):
            self._uses.setdefault(self._id_of[use[0].lower()], (self._lines[line - 1] + column + use.start(), use[0]))
