"""Give each test on a GPU the same initial state, whatever ran before it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from workbook.engines.state import free_memory, reset_compiler


@pytest.fixture(scope="session", autouse=True)
def _modules_are_set_aside() -> None:
    """Exclude the modules imported so far from garbage collection, because they stay until the end."""
    pytest.importorskip("torch")
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _device_is_left_as_it_was(_torch_is_left_as_it_was: None) -> Iterator[None]:
    reset_compiler()
    yield
    free_memory("cuda")
