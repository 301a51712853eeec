"""The whole way, as a user goes it: `labkit report` at smoke scale, resumed, killed, on the user's own images."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from labkit.host import ROOT
from labkit.records import parse_line
from labkit.report.html import external_urls
from tests.archives import write_npz, write_pickled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "labkit.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    return said


def lines(report: Path) -> list[str]:
    return [line for path in report.glob("records/*/*.jsonl") for line in path.read_text().splitlines()]


@pytest.fixture
def report() -> Path:
    return Path(os.environ["LABKIT_REPORTS"]) / "cpu"


def test_a_users_imagenet32_in_both_forms_gives_one_report(tmp_path: Path, report: Path) -> None:
    write_pickled(tmp_path / "pickled", per_batch=16, val=16, seed=1)
    write_npz(tmp_path / "npz", per_batch=16, val=16, seed=1)
    said = finish(start("report", "--hw", "cpu", "--scale", "smoke", "--data", str(tmp_path / "pickled")))
    assert "Plan at scale smoke" in said and "subset" in said
    measured = lines(report)
    assert {parse_line(line).status for line in measured} == {"ok"}
    training = [parse_line(line) for line in measured if parse_line(line).trial["workload"] == "train"]
    assert {record.trial["data"] for record in training} == {"imagenet32"}
    assert all(str(tmp_path) not in line for line in measured), "no path of the user's in a record"

    for page in ("index.html", "01_training.html"):
        text = (report / page).read_text(encoding="utf-8")
        assert external_urls(text) == []
        assert "<script src" not in text
        assert len(text) < 2_000_000
    run = json.loads((report / "run.json").read_text())["studies"]["01_training"]
    assert run["status"] == "ok" and run["command"].startswith("make report HW=cpu")

    # The other form holds the same images, so it has the same checksum, and nothing is left to measure.
    again = finish(start("report", "--hw", "cpu", "--scale", "smoke", "--data", str(tmp_path / "npz")))
    assert "6 of them measured before" in again
    assert lines(report) == measured


def test_killed_in_the_middle_the_same_command_goes_on(report: Path) -> None:
    first = start("report", "--hw", "cpu", "--scale", "smoke")
    deadline = time.monotonic() + 200
    while len(lines(report)) < 2 and time.monotonic() < deadline:
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.2)
    tree = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
    for process in tree:
        process.send_signal(signal.SIGKILL)
    first.wait()
    kept = lines(report)
    assert 2 <= len(kept) < 6
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive

    finish(start("report", "--hw", "cpu", "--scale", "smoke"))
    after = lines(report)
    assert after[: len(kept)] == kept, "what was written before is kept byte for byte"
    pairs = [(parse_line(line).key, parse_line(line).pass_number) for line in after]
    assert len(set(pairs)) == len(pairs) == 9, "six trials and three, and nothing is measured twice"

    again = finish(start("report", "--hw", "cpu", "--scale", "smoke"))
    assert "6 of them measured before" in again and lines(report) == after


def test_a_profile_without_records_still_renders_what_is_known(report: Path) -> None:
    finish(start("render", "--hw", "k40m"))
    index = (report.parent / "k40m" / "index.html").read_text(encoding="utf-8")
    assert "Kepler" in index or "kepler" in index
    assert "4.29" in index and "288" in index, "nominal peaks"
    assert "75.24019258" in index, "what the paper printed of it"
    assert "figure-nominal-roofline" in index
    assert external_urls(index) == []
    page = (report.parent / "k40m" / "01_training.html").read_text(encoding="utf-8")
    assert "Nothing was measured on Tesla K40m" in page
