"""Fixtures that several test modules use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet, open_data
from tests.commands import apart
from tests.faulty.campaign import records, run
from tests.processes import nothing_left_running
from workbook.records import Record
from workbook.records.store import Store
from workbook.trials.trial import Trial

Measured = Callable[..., dict[str, Record]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cpu")


@pytest.fixture(scope="session")
def digits(shared_cache: Path) -> DataSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(shared_cache))  # session fixtures run before a test sets its environment
        return open_data("digits")


@pytest.fixture(scope="session")
def few_images(shared_cache: Path) -> DataSet:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(shared_cache))
        return open_data("synthetic32", train_images=160, val_images=40)


@pytest.fixture(scope="session")
def measured(shared_cache: Path, own_folders: Iterator[Path]) -> Measured:
    """Return a function that measures trials for several tests, since processes take longer to start than to run."""

    def by_key(trials: list[Trial], **options: Any) -> dict[str, Record]:
        folder = next(own_folders)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in apart(folder, shared_cache).items():
                patch.setenv(name, value)
            with nothing_left_running():
                run(trials, folder / "cpu", **options)
            return {record.key: record for record in records(folder / "cpu")}

    return by_key
