"""A report submitted to a real Slurm: to its end, cancelled, and when its node dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labkit.places import ROOT
from tests.cluster.slurm_here import SlurmHere

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 280.0  # of what takes a minute on a machine that does nothing else

ASKED = {"HW": "cpu", "STUDY": "training", "SCALE": "smoke", "ON": "slurm"}


class Following:
    """`labkit report ON=slurm` as a process, and what it has said so far."""

    def __init__(self, slurm: SlurmHere, said: Path) -> None:
        self._said = said
        with said.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "labkit.cli", "report"],
                stdout=out,
                stderr=out,
                env={**slurm.environment, **ASKED},
                cwd=ROOT,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(encoding="utf-8")

    def until(self, there: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not there():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.said}\n{log()}"
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.said}\n{log()}"
            time.sleep(0.2)

    def ends(self, limit_s: float = LIMIT_S) -> int:
        return self.process.wait(limit_s)


@pytest.fixture
def follow(slurm: SlurmHere, tmp_path: Path) -> Iterator[Callable[[], Following]]:
    started: list[Following] = []

    def start() -> Following:
        started.append(Following(slurm, tmp_path / f"said.{len(started)}"))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def report() -> Path:
    return Path(os.environ["LABKIT_REPORTS"]) / "cpu"


def log() -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(report().glob("logs/slurm-*.log")))


def records() -> list[dict[str, object]]:
    """Whole lines only: the last may be being written."""
    lines = [line for path in report().glob("records/*/*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_a_report_is_made_as_a_job_of_two_nodes(slurm: SlurmHere) -> None:
    arguments = [f"{name}={value}" for name, value in {**ASKED, "NODES": "2"}.items()]
    done = subprocess.run(
        ["make", "-C", str(ROOT), "report", f"PYTHON={sys.executable}", *arguments],
        env=slurm.environment,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr + log()
    assert "as job 1." in done.stdout and "job 1: running on n[1-2]" in done.stdout
    assert "job 1: done" in done.stdout and (report() / "index.html").is_file() and records()
    assert "[1/1] 01_training" in log(), "the same report, in the job's log"


def test_a_cancelled_job_says_so_and_goes_on_when_asked_again(
    slurm: SlurmHere, follow: Callable[[], Following]
) -> None:
    first = follow()
    first.until(records, "the first record")
    again = follow()
    again.until(lambda: "job 1: running" in again.said, "the second to follow")
    assert "Job 1 makes this report already" in again.said, "not submitted twice"
    again.process.terminate()
    assert again.ends() == 130 and "job 1 goes on" in again.said
    slurm.ask("scancel", "1")
    assert first.ends() == 1
    assert "job 1 was cancelled: the same command (without FORCE=1) goes on where it was" in first.said
    assert first.said.count("Traceback") == 0
    kept = len(records())
    last = follow()
    assert last.ends() == 0, last.said + log()
    assert "measured before" in log() and len(records()) > kept >= 1


def test_a_node_that_dies_costs_what_it_was_measuring(slurm: SlurmHere, follow: Callable[[], Following]) -> None:
    first = follow()
    first.until(records, "the first record")
    slurm.kill_node("n1")
    first.until(lambda: "restarted once, goes on where it was" in first.said, "Slurm to notice")
    assert "job 1: stopped on n1 (the node failed" in first.said and "job 1: waiting (" in first.said
    # Slurm would start it again by itself, but only after two minutes.
    slurm.ask("scancel", "1")
    assert first.ends() == 1 and "job 1 was cancelled" in first.said
    kept = len(records())
    last = follow()
    last.until(lambda: len(records()) > kept, "another record")
    slurm.ask("scancel", "2")  # that it then comes to its end, the other tests show
    assert last.ends() == 1
    assert "job 2: running on n2" in last.said and "measured before" in log()
    pairs = [(record["key"], record["pass"]) for record in records() if record.get("status") == "ok"]
    assert len(pairs) == len(set(pairs)), "nothing is measured twice"
