"""Parts of a step by name, for whoever traces it: ranges of the profiler, and nothing at all where nobody does.

A mark outside of a trace is a call and a look at a flag, some 0.2 us on a slow host; a training step has six. They
stand outside of everything that is compiled, because a compiler would have to break its graph for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from labkit.measure.trace import SECTION

Name = Literal["load", "forward", "loss", "backward", "optimiser"]  # `labkit.records.traced.SECTIONS`, a test compares
_NOTHING: AbstractContextManager[Any] = nullcontext()
_marking = False


def section(name: Name) -> AbstractContextManager[Any]:
    """What the host does in it belongs to that part of the step. A part may be entered several times in a step."""
    if not _marking:
        return _NOTHING
    from torch.profiler import record_function

    mark: AbstractContextManager[Any] = record_function(SECTION + name)
    return mark


@contextmanager
def marked() -> Iterator[None]:
    """Steps in this context mark their sections."""
    global _marking
    before, _marking = _marking, True
    try:
        yield
    finally:
        _marking = before
