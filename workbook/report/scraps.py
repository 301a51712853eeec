"""The only adapter to scrapbook: glue headline numbers into a notebook, and read them back for the index.

scrapbook 0.5 cannot glue None, and its data frames break with current pandas. So only named texts and numbers are
glued. Records are the source of truth; scraps are the exchange format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbook.show.templates import drawn
from workbook.words import NOT_MEASURED, lacks_value

PREFIX = "labkit."
NO_VALUE = "**Not measured:** no record has the values of this answer."


@dataclass(frozen=True)
class Answer:
    """The answer of a study: at most three short sentences. Text between ** is bold."""

    bullets: tuple[str, ...]

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": "\n".join(self.bullets), "text/html": drawn("answer", self.bullets)}


def answer(*bullets: str, short: str = "", number: str = "", reason: str = NO_VALUE) -> Answer:
    """Return a study's answer for display, and publish it for the index: `short` (at most 20 words) and a `number`.

    A bullet that is empty or has no measured value is left out. If none has one, the `reason` why is the answer. A
    `short` or `number` without a value gives way to the first bullet's first sentence or "not measured".
    """
    import scrapbook

    from workbook.study import SHOWN

    shown = tuple(bullet for bullet in bullets if bullet and not lacks_value(bullet)) or (reason,)
    if not short or lacks_value(short) or shown == (reason,):
        short = re.split(r"(?<=\.) ", shown[0].replace("**", ""), maxsplit=1)[0]
    number = NOT_MEASURED if lacks_value(number) else number
    for name, value in {"headline": "\n\n".join(shown), "short": short, "number": number}.items():
        if value:
            scrapbook.glue(PREFIX + name, value)
    if SHOWN:
        scrapbook.glue(PREFIX + "shown", SHOWN)
    return Answer(shown)


def read(notebook: Path) -> dict[str, Any]:
    """Return the values glued into an executed notebook, by name."""
    import scrapbook

    scraps = scrapbook.read_notebook(str(notebook)).scraps
    return {name.removeprefix(PREFIX): scrap.data for name, scrap in scraps.items() if name.startswith(PREFIX)}
