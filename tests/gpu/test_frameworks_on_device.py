"""A framework's process takes only the GPU memory that it needs, and holds none after its trials."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from tests.gpu.test_on_device import run
from workbook.hardware.frameworks import KNOWN, is_keras
from workbook.runner.available import ask
from workbook.trials.trial import NO_DATA, Trial

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

GIB = 2**30
# Reasons that are no fault: the framework is not installed, or not as a build for GPUs.
NOT_FOR_GPUS = re.compile("not installed|a CPU build|has no CUDA plug-in")


def used_bytes() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("framework", filter(is_keras, KNOWN))
def test_no_process_of_a_framework_holds_gpu_memory_after_its_trial(framework: str, tmp_path: Path) -> None:
    answer = ask(framework, "cuda")
    if answer.reason and NOT_FOR_GPUS.search(answer.reason):
        pytest.skip(answer.reason)
    assert not answer.reason, "the framework is built for GPUs and fails on this one"
    assert answer.sees, "the device's name"
    before = used_bytes()
    trial = Trial(workload="tests.faulty.on_device", framework=framework, data=NO_DATA)
    (record,) = run([trial], tmp_path)
    assert record.status == "ok", record.reason
    assert record.versions["cuda"] and record.framework_version
    held = record.facts["used_bytes"] - before
    assert GIB < held < 4 * GIB, "the trial's memory and a context, not a share of the whole device"
    assert not psutil.pid_exists(record.facts["pid"])
    assert used_bytes() < before + GIB // 8


@pytest.mark.parametrize("framework", filter(is_keras, KNOWN))
def test_a_trial_on_the_cpu_leaves_the_device_alone(framework: str, tmp_path: Path) -> None:
    reason = ask(framework, "cpu").reason
    if reason and NOT_FOR_GPUS.search(reason):
        pytest.skip(reason)
    assert not reason, "the framework is installed and fails on the CPU"
    before = used_bytes()
    trial = Trial(workload="tests.faulty.on_device", framework=framework, data=NO_DATA, device="cpu")
    (record,) = run([trial], tmp_path)
    assert record.status == "ok", record.reason
    assert record.facts["used_bytes"] - before < GIB // 8
