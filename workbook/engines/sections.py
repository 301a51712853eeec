"""Named parts of a step, for traces: ranges of the profiler while one is taken, nothing otherwise.

A mark outside a trace is a call and a look at a flag, some 0.2 us on a slow host; a training step has six. Marks stand
outside all compiled code, because a compiler would have to break its graph for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from workbook.trace import SECTION

Name = Literal[
    "load", "forward", "loss", "backward", "optimiser"
]  # as `workbook.records.traced.SECTIONS`: a test checks
_NOTHING: AbstractContextManager[Any] = nullcontext()
_marking = False


def section(name: Name) -> AbstractContextManager[Any]:
    """Return a context that assigns the host's work to that part of the step. A step may enter a part several times."""
    if not _marking:
        return _NOTHING
    from torch.profiler import record_function

    mark: AbstractContextManager[Any] = record_function(SECTION + name)
    return mark


@contextmanager
def marked() -> Iterator[None]:
    """Mark the sections of steps within this context."""
    global _marking
    before, _marking = _marking, True
    try:
        yield
    finally:
        _marking = before
