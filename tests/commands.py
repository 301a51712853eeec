"""labkit's commands in separate processes, and a site that they have rendered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.committed import committed_reports
from workbook.paths import ROOT

SMOKE = ("report", "--hw", "cpu", "--scale", "smoke", "--study")
# The comparison is second: it runs beside the longest command and ends before most indexes look for it to link to it.
# These studies have the pages that differ most. tests/notebooks runs all studies on committed records.
RENDERS = {
    "h200": ("render", "--hw", "h200", "--study", "01_training"),
    "comparison": ("compare", "--baseline", "h200"),
    "cpu": ("render", "--hw", "cpu", "--study", "01_training"),
    "k40m": ("render", "--hw", "k40m", "--study", "01_training,03_multi_gpu"),
}
UNRECORDED = "k40m"
SAID = "said.json"
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


def finish(process: subprocess.Popen[str], timeout_s: float = 400) -> str:
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
    """Reports of several profiles, rendered from committed records, in one folder like reports/."""

    folder: Path
    said: dict[str, str]  # output of each command, by its key in RENDERS

    def pages(self, *profiles: str) -> list[Path]:
        return sorted(page for profile in profiles for page in (self.folder / profile).glob("*.html"))


def render(folder: Path, cache: Path) -> None:
    """Render a site in `folder` and save the output of the commands there."""
    environment = apart(folder, cache)
    reports = Path(environment["LABKIT_REPORTS"])
    shutil.copytree(committed_reports(), reports)
    with ThreadPoolExecutor(2) as pool:
        outputs = pool.map(lambda command: finish(start(*command, environment=environment), 800), RENDERS.values())
        output_of = dict(zip(RENDERS, outputs, strict=True))
    (folder / SAID).write_text(json.dumps(output_of), encoding="utf-8")


def rendered(folder: Path) -> Site:
    """Return the site that `render` has made in `folder`."""
    return Site(folder / "reports", json.loads((folder / SAID).read_text(encoding="utf-8")))
