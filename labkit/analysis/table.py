"""Tables as HTML that can be read aloud and copied: a caption, header cells with scope, every cell escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.analysis.format import MISSING, number

SHORT = 20  # characters of a text that stays on one line; the head of a row does up to ...
LONG = 48


@dataclass(frozen=True)
class Table:
    """A table that shows itself in a notebook. Cells are texts already, or numbers (shown to 4 digits)."""

    frame: pd.DataFrame
    caption: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {
            "text/plain": f"{self.caption}\n{self.frame.to_string(index=False)}",
            "text/html": table_html(self.frame, self.caption),
        }


@dataclass(frozen=True)
class Text:
    """Sentences rendered from records. `body` is plain text but for `code`; blank lines part paragraphs."""

    body: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        paragraphs = "".join(f"<p>{_inline(part)}</p>" for part in self.body.split("\n\n"))
        return {"text/plain": self.body, "text/html": f'<div class="lk-text">{paragraphs}</div>'}


def table_html(frame: pd.DataFrame, caption: str = "", label: str = "") -> str:
    """A frame as an HTML table; the first column heads its row. Missing cells show a dash, never 0.

    `label` names the region for those who cannot see it, where there is no caption.
    """
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' if name else "<td></td>" for name in frame.columns)
    rows = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    numeric = [_of_numbers(column) for column in zip(*rows, strict=True)]
    body = []
    for first, *rest in rows:
        cells = "".join(f"<td{_class(text, many)}>{text}</td>" for text, many in zip(rest, numeric[1:], strict=True))
        body.append(f'<tr><th scope="row"{" class=lk-long" if len(first) > LONG else ""}>{first}</th>{cells}</tr>')
    said = f"<caption>{_inline(caption)}</caption>" if caption else ""
    return (
        f'<div class="lk-scroll" role="region" tabindex="0" aria-label="{html.escape(caption or label or "table")}">'
        f'<table class="lk-table">{said}<thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value, 4)
    return _inline(str(value))


def _inline(text: str) -> str:
    """A text as HTML; what stands between backticks, as in reasons that name a command, is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


# A number, alone or with unit, interval or a second one: `1,234`, `± 5 %`, `&lt; 0.1 %`, `12 ms`, `1.3x [1.2, 1.4]`,
# `3 to 4`.
_NUMBER = re.compile(r"((±|&[lg]t;) ?)?[-−]?\d[\d.,:e+-]*( ?(%|x|[^\W\d_][^\s,;]*))?( ?(\[[^]]*\]|(to|and|/|±) .*))?")


def _of_numbers(column: Sequence[str]) -> bool:
    """Whether most of a column's cells are numbers, or none of them is anything: it is set to the right."""
    known = [text for text in column if text != MISSING]
    return 2 * sum(_NUMBER.fullmatch(text) is not None for text in known) >= len(known)


def _class(text: str, of_numbers: bool) -> str:
    """Numbers stand under each other, a short text is not broken into lines, and a long one not into single words."""
    if of_numbers and (text == MISSING or _NUMBER.fullmatch(text)):
        return " class=n"
    kept_together = "\N{NO-BREAK SPACE}" in text and " " not in text and len(text) <= LONG
    short = len(text) <= SHORT or kept_together or _NUMBER.fullmatch(text)
    return " class=lk-short" if short else " class=lk-words"
