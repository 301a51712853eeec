"""Tests of a report submitted to a real Slurm: completed, cancelled, and interrupted by the death of its node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.slurm_here import SlurmHere
from workbook.paths import ROOT

LIMIT_S = 280.0  # such a command takes 1 min on an idle machine
ASKED = {"HW": "cpu", "STUDY": "training", "SCALE": "smoke", "ON": "slurm"}


class Command:
    """A process of `labkit report` with ON=slurm, and its output."""

    def __init__(self, slurm: SlurmHere, path: Path) -> None:
        self._path = path
        command, environment = [sys.executable, "-m", "workbook.cli", "report"], slurm.environment | ASKED
        with path.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=ROOT)

    @property
    def output(self) -> str:
        return self._path.read_text(encoding="utf-8", errors="replace")

    def until(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not there():
            assert self.process.poll() is None and time.monotonic() < deadline, self.output
            time.sleep(0.2)

    def prints(self, text: str) -> None:
        self.until(lambda: text in self.output)

    def ends(self) -> int:
        return self.process.wait(LIMIT_S)


@pytest.fixture
def start(slurm: SlurmHere, tmp_path: Path) -> Iterator[Callable[[], Command]]:
    commands: list[Command] = []

    def start() -> Command:
        commands.append(Command(slurm, tmp_path / f"output.{len(commands)}"))
        return commands[-1]

    yield start
    for command in commands:
        command.process.kill()
        command.process.wait()


def report() -> Path:
    return Path(os.environ["LABKIT_REPORTS"]) / "cpu"


def records() -> list[dict[str, object]]:
    """Return the records in complete lines. The last line may be only partly written."""
    lines = [line for path in report().glob("records/*/*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_a_report_is_made_as_a_job_of_two_nodes(slurm: SlurmHere) -> None:
    arguments = [f"{name}={value}" for name, value in {**ASKED, "NODES": "2", "PYTHON": sys.executable}.items()]
    command = ["make", "-C", str(ROOT), "report", *arguments]
    process = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert process.returncode == 0, process.stdout + process.stderr
    for text in ("as job 1.", "job 1: RUNNING on n[1-2]", "[1/1] 01_training", "job 1 completed: "):
        assert text in process.stdout, process.stdout
    assert (report() / "index.html").is_file() and records()


def test_two_nodes_read_images_from_a_folder_that_they_share(slurm: SlurmHere) -> None:
    asked = {**ASKED, "STUDY": "data_pipeline", "NODES": "2", "PYTHON": sys.executable}
    command = ["make", "-C", str(ROOT), "report", *(f"{name}={value}" for name, value in asked.items())]
    process = subprocess.run(command, env=slurm.environment, capture_output=True, text=True, timeout=2 * LIMIT_S)
    assert process.returncode == 0, process.stdout + process.stderr
    rows: list[Any] = records()
    over_nodes = {(r["trial"]["network"], r["trial"]["cache"]): r for r in rows if r["trial"]["nodes"] == 2}
    for cache in ("cold", "warm"):
        record = over_nodes["any", cache]
        assert record["status"] == "ok", record["reason"]
        first, second = record["result"]["epochs"]
        assert first["images"] == second["images"] > 0
        assert first["asked_bytes"] >= record["result"]["file_bytes"], "all ranks are counted"
        assert second["read_bytes"] == 0
    assert over_nodes["infiniband", "cold"]["status"] == "unsupported"


def test_a_cancelled_report_resumes_when_asked_again(slurm: SlurmHere, start: Callable[[], Command]) -> None:
    first = start()
    first.until(records)
    again = start()
    again.prints("job 1: RUNNING on n1")
    assert "Job 1 makes this report already" in again.output, "not submitted twice"
    again.process.terminate()
    assert again.ends() == 130 and "job 1 continues" in again.output
    slurm.ask("scancel", "1")
    assert first.ends() == 1 and "Traceback" not in first.output
    assert "job 1 (n1) was cancelled." in first.output and "without FORCE=1 resumes the report" in first.output
    kept = len(records())
    last = start()
    assert last.ends() == 0, last.output
    assert "measured before" in last.output and len(records()) > kept >= 1


def test_a_report_resumes_after_the_death_of_its_node(slurm: SlurmHere, start: Callable[[], Command]) -> None:
    first = start()
    first.until(records)
    slurm.kill("n1")
    first.prints(", requeued after a node failure or preemption")
    # Slurm would restart the job by itself, but only after 2 min.
    slurm.ask("scancel", "1")
    assert first.ends() == 1 and "job 1 (no node) was cancelled" in first.output
    kept = len(records())
    last = start()
    last.until(lambda: len(records()) > kept)
    slurm.ask("scancel", "2")  # other tests show that a resumed job completes
    assert last.ends() == 1
    assert "job 2: RUNNING on n2" in last.output and "measured before" in last.output
    pairs = [(record["key"], record["pass"]) for record in records() if record.get("status") == "ok"]
    assert len(pairs) == len(set(pairs)), "nothing is measured twice"
