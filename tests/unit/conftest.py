"""What several modules of tests stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.data import DataSet, open_data
from labkit.records import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cpu")


@pytest.fixture(scope="session")
def digits(shared_cache: Path) -> DataSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(shared_cache))  # a test's own environment comes after the session's
        return open_data("digits")


@pytest.fixture
def _torch_is_left_as_it_was() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    flags = [
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
    ]
    before = [(place, name, getattr(place, name)) for place, name in flags]
    yield
    for place, name, value in before:
        setattr(place, name, value)
