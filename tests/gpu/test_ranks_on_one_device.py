"""Two ranks that share one GPU compute correctly in captured steps over NCCL (needs NCCL 2.30 or later).

`test_ranks_on_device.py`, which needs two GPUs, tests times and transfers between devices.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from workbook.paths import ROOT
from workbook.trials.recipes import CAPTURED, COMPILED, on_devices

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TOGETHER = {"workload": "train", "batch": 64, "device": "cuda", "data": "synthetic32", "augment": True}
LIMIT_S = 300
REFUSED = ("Duplicate GPU detected", "Multiple Ranks are using the same GPU")


def together(*variants: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the output of two ranks for each variant. Skip if this NCCL wants a GPU for each rank."""
    trials = json.dumps([{**TOGETHER, **fields} for fields in variants])
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [*start, "--nproc-per-node=2", "-m", "tests.gpu.ranks_on_one_device", trials]
    environment = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "4"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes) as started:
        try:
            output, errors = started.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # ranks that wait for each other would keep the device
            raise
    if started.returncode and any(message in output + errors for message in REFUSED):
        pytest.skip("this NCCL wants a GPU for each rank: 2.30 and later let two share one")
    assert started.returncode == 0, (output + errors)[-4000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def test_two_ranks_that_share_the_update_pass_the_gate() -> None:
    graph, compiled = on_devices(CAPTURED, 2), on_devices(COMPILED, 2)
    made = together(
        {**graph, "model": "vgg16"},
        {**compiled, "model": "vgg16"},
        {**graph, "model": "alexnet", "image_px": 224},
        {**graph, "model": "resnet18"},
        {**compiled, "model": "resnet18", "data": "digits", "classes": 10, "batch": 32},
    )
    assert [trial["said"] for trial in made] == [[None, None]] * 5
    assert [len(trial["facts"]["shared_buckets_bytes"]) for trial in made] == [2, 2, 2, 0, 0]


def test_the_gate_finds_a_shared_update_that_is_not_put_together() -> None:
    vgg16 = {**on_devices(CAPTURED, 2), "model": "vgg16"}
    faulty = "tests.faulty.train_in_buckets"
    made = together(*({**vgg16, "workload": faulty, "size": fault} for fault in (0, 2, 3)))
    sound, weights, gradients = (trial["said"] for trial in made)
    assert sound == [None, None]
    assert all("rank 1 has other weights than rank 0" in message for message in weights)
    assert all("of their change" in message or "change of" in message for message in gradients), gradients
