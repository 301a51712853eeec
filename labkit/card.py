"""Cards, the printed form of results: a title and a few labelled lines, as text or as a table in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod


class Card(ABC):
    """A result that prints as a card."""

    @abstractmethod
    def _card(self) -> tuple[str, list[tuple[str, str]]]:
        """Return the title, and the lines as pairs of label and text."""

    def __repr__(self) -> str:
        title, lines = self._card()
        width = max((len(label) for label, _ in lines), default=0)
        return "\n".join([title, *(f"  {label:{width}}  {text}" for label, text in lines)])

    def _repr_html_(self) -> str:
        title, lines = self._card()
        rows = "".join(f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>" for label, text in lines)
        return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def seconds_text(seconds: float) -> str:
    """Return a time with four digits, in s, ms or µs."""
    unit, scale = ("s", 1.0) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.4g} {unit}"


def number_text(number: float) -> str:
    """Return a number with three digits or more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
