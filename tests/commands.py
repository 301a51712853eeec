"""labkit's commands in separate processes, and a site that they have rendered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.committed import committed_reports
from tests.once import once
from workbook.paths import ROOT

SMOKE = ("report", "--hw", "cpu", "--scale", "smoke", "--study")
# These studies have the pages that differ most. tests/notebooks runs all studies on committed records.
RENDERS = {
    "h200": ("render", "--hw", "h200", "--study", "01_training"),
    "comparison": ("compare", "--baseline", "h200"),
    "cpu": ("render", "--hw", "cpu", "--study", "01_training"),
    "k40m": ("render", "--hw", "k40m", "--study", "01_training,03_multi_gpu"),
}
UNRECORDED = "k40m"
SAID = "said.txt"
# What the make that runs the tests sets for a make that they start.
MADE_BY_MAKE = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")


def start(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "workbook.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 800) -> str:
    """Wait for the process, assert that it exits with code 0, and return its output."""
    output, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, output
    return output


def apart(folder: Path, cache: Path) -> dict[str, str]:
    """Return an environment for tests to share: reports, lock and state in `folder`, no LABKIT variable of the user."""
    own = {"LABKIT_REPORTS": "reports", "LABKIT_LOCK": "lock", "XDG_STATE_HOME": "state"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LABKIT_")}
    return {**kept, "LABKIT_CACHE": str(cache), **{name: str(folder / place) for name, place in own.items()}}


@dataclass(frozen=True)
class Site:
    """Reports in one folder like reports/. Each is rendered from committed records when a test first asks for it."""

    factory: pytest.TempPathFactory
    cache: Path

    @property
    def folder(self) -> Path:
        def copy(base: Path) -> None:
            shutil.copytree(committed_reports(), base / "reports")

        return once(self.factory, "site", copy) / "reports"

    def said(self, name: str) -> str:
        """Return the output of the command of this name in RENDERS."""

        def render(made: Path) -> None:
            command = start(*RENDERS[name], environment=apart(self.folder.parent, self.cache))
            (made / SAID).write_text(finish(command), encoding="utf-8")

        return (once(self.factory, f"render-{name}", render) / SAID).read_text(encoding="utf-8")

    def report(self, name: str) -> Path:
        """Return the rendered report of this name in RENDERS."""
        self.said(name)
        return self.folder / name

    def pages(self, *names: str) -> list[Path]:
        return sorted(page for name in names for page in self.report(name).glob("*.html"))
