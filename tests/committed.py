"""The records under version control, without those that this machine has measured since."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from workbook.paths import ROOT


@cache
def committed_reports() -> Path:
    """Return a folder like `reports/` with the committed files only. Callers must not write to it.

    The files come from the index, so tests also cover records that are about to be committed. A copy of the project
    without its history (a tarball) has no index: there the packed records count, and a report in progress has none.
    """
    folder = Path(tempfile.mkdtemp(prefix="labkit-committed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if not _check_out(folder):
        _copy_packed(folder / "reports")
    return folder / "reports"


def _check_out(folder: Path) -> bool:
    """Write the files of git's index to `folder`. Return whether that succeeded."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return False
    listed = subprocess.run(["git", "ls-files", "-z", "reports"], cwd=ROOT, capture_output=True)
    command = ["git", "checkout-index", "-z", "--stdin", f"--prefix={folder}/"]
    return listed.returncode == 0 and subprocess.run(command, cwd=ROOT, input=listed.stdout).returncode == 0


def _copy_packed(folder: Path) -> None:
    reports = ROOT / "reports"
    for records in reports.glob("*/records/*/*.jsonl.gz"):
        profile, host, study = records.parts[-4], records.parent.name, records.name.partition(".")[0]
        wanted = [records, *(reports / profile / "telemetry" / host).glob(f"{study}.*")]
        for path in [*wanted, reports / profile / "hosts" / f"{host}.json"]:
            copy = folder / path.relative_to(reports)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
