"""The short project that several tests of faults share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.project import Project, apart_from, copy
from tests.once import once


@pytest.fixture(scope="session")
def short_project(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a copy of the project whose reports are short. Tests must not write to it."""
    folder = once(tmp_path_factory, "short", lambda folder: copy(folder, shared_cache) and None)
    return Project(folder, apart_from(folder, shared_cache, folder / "project"), folder / "project")


@pytest.fixture
def project(short_project: Project, tmp_path: Path) -> Callable[..., Project]:
    """Return a function that gives the short project folders of a test's own, and further variables."""

    def own(**variables: str) -> Project:
        base = Path(short_project.environment["LABKIT_CACHE"])
        return replace(short_project, environment={**apart_from(tmp_path, base, short_project.root), **variables})

    return own
