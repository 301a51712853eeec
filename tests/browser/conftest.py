"""A browser, and a whole report rendered for it to open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labkit.host import ROOT
from tests.browser.checks import ARGUMENTS, chromium, why_not

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RECORDED = ("hosts", "records", "telemetry")
# Of a profile without records pages are alike, and a CPU's are a GPU's with less on them, but where devices are
# compared; tests/notebooks read all of them.
EMPTY = "01_training,08_quantization"
OF_CPU = "01_training,03_multi_gpu,06_cpu_vs_gpu"
OF_GPU = "01_training,02_batch_size,04_power,06_cpu_vs_gpu,07_precision"
Said = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Site:
    """Reports of several profiles, rendered from committed records, beside each other as in reports/."""

    folder: Path
    unrecorded: str  # the profile whose report has no records
    renders: dict[str, Said]
    compare: Said

    @property
    def pages(self) -> list[Path]:
        return sorted(self.folder.glob("*/*.html"))

    def name(self, page: Path) -> str:
        return page.relative_to(self.folder).as_posix()


# Not for the session: Playwright keeps an event loop running, and other tests start loops of their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="package")
def site(browser: Browser, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder, own = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("own")
    environment = os.environ | {
        "LABKIT_REPORTS": str(folder),
        "LABKIT_CACHE": str(shared_cache),
        "LABKIT_LOCK": str(own / "lock"),
        "XDG_STATE_HOME": str(own / "state"),
    }

    def labkit(*arguments: str) -> Said:
        return subprocess.run(
            [sys.executable, "-m", "labkit.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
            timeout=800,
        )

    for part in sorted((ROOT / "reports").glob("*/*")):
        if part.name in RECORDED:
            shutil.copytree(part, folder / part.parent.name / part.name)
    # The comparison second: beside the longest of them, and finished before most indexes look for it, to link to it.
    commands = {"h200": ("render", "--hw", "h200", "--study", OF_GPU), "": ("compare",)}
    commands |= {name: ("render", "--hw", name, "--study", of) for name, of in (("cpu", OF_CPU), ("k40m", EMPTY))}
    with ThreadPoolExecutor(2) as pool:
        said = dict(zip(commands, pool.map(lambda command: labkit(*command), commands.values()), strict=True))
    compare = said.pop("")
    return Site(folder, "k40m", said, compare)
