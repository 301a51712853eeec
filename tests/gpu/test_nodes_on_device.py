"""Two GPUs of one machine as two nodes: NCCL treats each as a host and uses the network between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.data import open_data
from tests.gpu.test_on_device import profile_of_this_gpu
from tests.several_nodes import Beside
from workbook.hardware.host import this_host
from workbook.records.store import Store
from workbook.runner import measure
from workbook.runner.process import GroupProcess, Work
from workbook.session import Session
from workbook.trials.trial import Trial

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_two_nodes_of_one_gpu_train_one_network_over_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = this_host()
    if len(host.gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs, and this machine has one")
    init = GroupProcess.__init__

    def on_any_device(group: GroupProcess, work: Work, **about: Any) -> None:
        """Leave the choice of devices to the prefixes of the nodes."""
        environment = {name: value for name, value in work.environment.items() if name != "CUDA_VISIBLE_DEVICES"}
        init(group, replace(work, environment=environment), **about)

    monkeypatch.setattr(GroupProcess, "__init__", on_any_device)
    before = [("env", f"CUDA_VISIBLE_DEVICES={node}", f"NCCL_HOSTID=node{node}") for node in range(2)]
    data = open_data("synthetic32", train_images=2000, val_images=200)
    over = Trial(
        model="resnet18", batch=32, data=data.name, data_checksum=data.checksum, devices=2, nodes=2, network="ethernet"
    )
    trials = [over, replace(over, gradient_precision="bf16"), replace(over, devices=4)]
    profile, store = profile_of_this_gpu(), Store(tmp_path)
    profile = profile.model_copy(update={"device": profile.device.model_copy(update={"count": 1})})
    measure(
        trials,
        study="01_training",
        session=Session(scale="smoke", profile=profile, host=host, store=store),
        nodes=Beside(before=tuple(before)),
    )  # a node of this profile has one GPU
    sockets, rounded, larger = (
        {record.key: record for record in store.read("01_training", host.id)}[t.key] for t in trials
    )
    for record in (sockets, rounded):
        assert record.status == "ok", record.reason
        assert record.blocks is not None and record.blocks.images_per_step == 64
        assert record.facts["telemetry_of"] == "the first of 2 nodes"
        assert record.facts["gate"]["change_difference"] <= record.facts["gate"]["change_tolerance"]
    assert sockets.telemetry is not None
    gpus = {name for window in sockets.telemetry.windows.values() for name in window.sources if name.startswith("gpu")}
    assert gpus <= {"gpu0"}, "the record has no telemetry of the other node"
    assert larger.status == "unsupported", "a node has one GPU"
