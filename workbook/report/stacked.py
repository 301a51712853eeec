"""Tables for a phone: each cell of a table with many columns has its column's heading, so that its row can be a block.

The stylesheet shows rows as blocks where a table has little room. Everywhere else the table looks as before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bs4 import Tag

STACKED = "lk-stack"
FITTING = "lk-choose"  # many columns, but short ones that fit on a phone
ABREAST = 3  # columns that fit side by side on a phone
_TABLE = re.compile(r"<table\b(?:(?!<table\b).)*?</table>", re.S)  # parsing a whole page takes a second


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
