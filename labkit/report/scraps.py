"""The one adapter to scrapbook: headline numbers glued into a notebook, and read back for the index.

scrapbook 0.5 cannot glue None and its data frames break with current pandas, so only named texts and numbers go in.
Records are the truth; scraps are the exchange format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PREFIX = "labkit."


def publish(**values: str | float | int | list[str] | list[list[str]] | None) -> None:
    """Glue named values into the notebook that runs; a missing one is left out, since scrapbook can't hold it."""
    import scrapbook

    for name, value in values.items():
        if value is not None:
            scrapbook.glue(PREFIX + name, value)


def first_answer(said: dict[str, Any]) -> str:
    """The first paragraph of the answer that a notebook has published; the rest is on its page."""
    return str(said.get("headline") or "").split("\n\n")[0]


def in_short(notebook: Path) -> list[str]:
    """What its page says first: that paragraph, and how many claims held; [] where nothing was published."""
    try:
        said = read(notebook)
    except Exception:  # noqa: BLE001 - whatever nbformat raises; the page itself says what is wrong with its notebook
        return []
    return [text for text in (first_answer(said), str(said.get("verdicts") or "")) if text]


def read(notebook: Path) -> dict[str, Any]:
    """The values glued into an executed notebook."""
    import scrapbook

    scraps = scrapbook.read_notebook(str(notebook)).scraps
    return {name.removeprefix(PREFIX): scrap.data for name, scrap in scraps.items() if name.startswith(PREFIX)}
