"""The records that version control holds, apart from what this machine has measured since."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from labkit.places import ROOT


@cache
def committed_reports() -> Path:
    """A folder like `reports/` with the committed files only; to be read, not written.

    They come from the index, so that records which are about to be committed are tested too. A copy of the project
    without its history (a tarball) has no index: there the packed records count, and a report in progress has none.
    """
    folder = Path(tempfile.mkdtemp(prefix="labkit-committed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if not _check_out(folder):
        _copy_packed(folder / "reports")
    return folder / "reports"


def _check_out(folder: Path) -> bool:
    """Whether version control has written the files there."""
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
