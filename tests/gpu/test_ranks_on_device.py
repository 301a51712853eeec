"""Several real NVIDIA GPUs run trials together: gradients, transfers and failures, by whatever way NCCL is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet, open_data
from labkit.host import Host, this_host
from labkit.recipes import CAPTURED, COMPILED, on_devices
from labkit.records import Epochs, Record, Store
from labkit.run import measure
from labkit.trial import INTERCONNECTS, Trial
from tests.gpu.test_on_device import profile_of_this_gpu

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def host() -> Host:
    found = this_host()
    if len(found.gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs, and this machine has one")
    return found


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=2000, val_images=200)


def run(host: Host, trials: list[Trial], folder: Path) -> list[Record]:
    """One record a trial, in the trials' order."""
    profile, store = profile_of_this_gpu(), Store(folder)
    profile = profile.model_copy(update={"device": profile.device.model_copy(update={"count": len(host.gpus)})})
    measure(trials, study="01_training", scale="smoke", profile=profile, host=host, store=store)
    by_key = {record.key: record for record in store.read("01_training", host.id)}
    return [by_key[trial.key] for trial in trials]


def assert_ok(made: list[Record]) -> None:
    assert [(one.status, one.reason) for one in made] == [("ok", None)] * len(made)


def test_two_gpus_train_one_network_in_every_way_that_they_may(host: Host, data: DataSet, tmp_path: Path) -> None:
    one = Trial(model="resnet18", batch=32, data=data.name, data_checksum=data.checksum)
    two = replace(one, devices=2)
    variants: list[dict[str, Any]] = [
        {},
        {"scaling": "strong"},
        {"gradient_precision": "bf16"},
        {"precision": "bf16", "gradient_precision": "fp16"},
        {"updates": "asynchronous"},
        {"arrangement": "at_once"},
        {"arrangement": "in_sequence"},
        {"epochs": 1},
    ]
    trials = [one, *(replace(two, **fields) for fields in variants), replace(one, arrangement="at_once")]
    made = run(host, trials, tmp_path)
    assert_ok(made)
    for record in made:
        if record.telemetry is None:
            continue
        seen = {name for window in record.telemetry.windows.values() for name in window.sources if name[:3] == "gpu"}
        assert len(seen) == record.as_trial.devices, "every GPU that a trial uses is watched, and no other"
    assert made[1].facts["gate"]["change_difference"] < made[1].facts["gate"]["change_tolerance"]


def test_captured_steps_exchange_gradients_inside_their_graph(host: Host, data: DataSet, tmp_path: Path) -> None:
    one = Trial(model="resnet18", batch=32, data=data.name, data_checksum=data.checksum, augment=True)
    variants: list[dict[str, Any]] = [
        on_devices(CAPTURED, 2),
        on_devices(COMPILED, 2),
        {**on_devices(COMPILED, 2), "model": "vgg16", "head": "head512"},
        {**on_devices(CAPTURED, 2), "image_px": 96},  # no side stream
        {**on_devices(CAPTURED, 2), "scaling": "strong"},
        {**on_devices(CAPTURED, 2), "arrangement": "in_sequence"},
        {**on_devices(CAPTURED, 2), "interconnect": "host"},
        {**CAPTURED, "devices": 2, "optimizer": "sgd_fused"},
        {**CAPTURED, "devices": 2, "optimizer": "sgd_fused", "precision": "fp16", "gradient_precision": "fp16"},
        {"devices": 2, "engine": "compile", "precision": "bf16", "optimizer": "sgd_fused", "loader": "device"},
    ]
    made = run(host, [replace(one, **fields) for fields in variants], tmp_path)
    assert_ok(made)
    for record in made:
        assert record.facts["gate"]["change_difference"] < record.facts["gate"]["change_tolerance"]
        wire = 4 if record.as_trial.gradient_precision == "fp32" else 2
        sent = sum(record.facts["gradient_buckets_bytes"])
        assert wire <= sent / record.facts["parameters"] < 1.02 * wire


@pytest.mark.parametrize("recipe", [CAPTURED, COMPILED], ids=["graph", "compile+graph"])
def test_two_gpus_learn_with_captured_steps_what_one_learns(host: Host, tmp_path: Path, recipe: dict[str, Any]) -> None:
    digits = open_data("digits")
    images: dict[str, Any] = {"data": digits.name, "data_checksum": digits.checksum, "classes": 10}
    learning = Trial(model="resnet18", batch=64, epochs=4, schedule="one_cycle", **images)
    alone = replace(learning, **recipe)
    shared = replace(learning, scaling="strong", **on_devices(recipe, 2))
    made = run(host, [alone, shared], tmp_path)
    assert_ok(made)
    for record in made:
        assert isinstance(record.result, Epochs)
        assert record.result.epochs[-1].top1 > 0.9


def test_gradients_that_a_graph_does_not_average_are_found(host: Host, data: DataSet, tmp_path: Path) -> None:
    trial = Trial(model="resnet18", batch=32, data=data.name, data_checksum=data.checksum, **on_devices(CAPTURED, 2))
    (made,) = run(host, [replace(trial, workload="tests.faulty.train_in_buckets", size=1)], tmp_path)
    assert made.status == "crashed" and "correctness gate" in (made.reason or "")


def test_transfers_are_slower_the_fewer_ways_are_left(host: Host, tmp_path: Path) -> None:
    size = 2**26
    for workload in ("all_reduce", "peer_copy"):
        trials = [
            Trial(workload=workload, devices=2, size=size, data="none", interconnect=way) for way in INTERCONNECTS
        ]
        made = run(host, trials, tmp_path)
        assert_ok(made)
        rates = []
        for record in made:
            assert record.blocks is not None
            steps = record.blocks.steps_per_block * len(record.blocks.host_s)
            rates.append(size * steps / sum(record.blocks.host_s))
        assert rates[0] > rates[2], f"{workload}: direct {rates[0]:.3g} bytes/s, sockets {rates[2]:.3g}"


def test_a_rank_that_fails_or_hangs_on_a_gpu_costs_its_trial_alone(host: Host, data: DataSet, tmp_path: Path) -> None:
    sound = Trial(model="resnet18", batch=32, data=data.name, data_checksum=data.checksum, devices=2)
    faulty = [
        Trial(workload=f"tests.faulty.together_{how}", devices=2, size=2, data="none", device="cuda")
        for how in ("raises", "kill")
    ]
    made = run(host, [*faulty, sound], tmp_path)
    assert [one.status for one in made] == ["crashed", "crashed", "ok"]
    assert all((one.reason or "").startswith("rank 1 of 2") for one in made[:2])


def test_more_gpus_than_there_are_is_no_trial_on_fewer(host: Host, data: DataSet, tmp_path: Path) -> None:
    many = len(host.gpus) + 1
    (made,) = run(host, [Trial(model="resnet18", devices=many, data=data.name, data_checksum=data.checksum)], tmp_path)
    assert made.status == "unsupported"
    assert f"asks for {many} devices" in (made.reason or "")
