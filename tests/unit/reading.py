"""What a test reads off the parts of a page."""

from __future__ import annotations

from typing import Any

from labkit.analysis.figure import Figure
from labkit.analysis.table import Table, Text


def said(part: Figure | Table | Text) -> str:
    """A text's words, or what stands under a figure or over a table."""
    return part.body if isinstance(part, Text) else part.caption


def row_of(frame: Any, **fields: Any) -> Any:
    """The one row with these values."""
    for name, value in fields.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]
