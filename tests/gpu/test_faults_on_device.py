"""Faults of a real GPU: a broken CUDA context, and a GPU that disappears while a study is measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faulty.campaign import listed_for
from tests.gpu.test_on_device import run
from workbook.hardware.host import this_host
from workbook.records import Record
from workbook.trials.trial import NO_DATA, Trial

pytestmark = pytest.mark.gpu


def around(fault: str) -> list[Trial]:
    """Return two sound trials and a faulty one, arranged so that the faulty one runs second."""
    first, last = (Trial(workload="matmul", size=size, data=NO_DATA) for size in (1024, 2048))
    faulty = Trial(workload=f"tests.faulty.{fault}", data=NO_DATA)
    return listed_for([first, faulty, last], this_host().id)


def statuses(made: list[Record]) -> list[str]:
    return [record.status for record in made]


def test_a_trial_that_breaks_the_cuda_context_costs_only_itself(tmp_path: Path) -> None:
    made = run(around("breaks_gpu"), tmp_path)
    assert statuses(made) == ["ok", "crashed", "ok"], [record.reason for record in made]
    assert "device-side assert" in (made[1].reason or "")
    assert made[1].process.id != made[2].process.id


def test_a_gpu_that_disappears_stops_the_study_and_the_same_command_goes_on(tmp_path: Path) -> None:
    apart = ["unshare", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("hiding a GPU needs unshare and root")
    code = (
        "import sys; from pathlib import Path; from tests.gpu.test_faults_on_device import around, run; "
        "run(around('hides_gpu'), Path(sys.argv[1]))"
    )
    command = [*apart, sys.executable, "-c", code, str(tmp_path)]
    environment = {**os.environ, "LABKIT_TEST_MOUNTS": str(Path("/proc/self/ns/mnt").readlink())}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "LabkitError: the driver no longer lists" in ended.stderr, ended.stderr
    sound = [trial for trial in around("hides_gpu") if trial.workload == "matmul"]
    made = run(sound, tmp_path)
    assert statuses(made) == ["ok", "crashed", "ok"], [record.reason for record in made]
