"""A Slurm for each test, ended whatever happens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm_here import SlurmHere, why_not


@pytest.fixture(scope="session")
def _slurm_can_be_started() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def slurm(_slurm_can_be_started: None) -> Iterator[SlurmHere]:
    here = SlurmHere(Path(tempfile.mkdtemp(prefix="slurm-")))
    try:
        here.start()
        yield here
    finally:
        here.stop()
        shutil.rmtree(here.folder, ignore_errors=True)
