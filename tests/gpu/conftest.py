"""Each test on a GPU begins as the first one does, whatever ran before it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from labkit.measure import free_memory, reset_compiler


@pytest.fixture(scope="session", autouse=True)
def _modules_are_set_aside() -> None:
    """What is imported by now stays to the end, and no collection after a test need look through it."""
    pytest.importorskip("torch")
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _device_is_left_as_it_was(_torch_is_left_as_it_was: None) -> Iterator[None]:
    reset_compiler()
    yield
    free_memory("cuda")
