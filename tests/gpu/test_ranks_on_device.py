"""Several real NVIDIA GPUs run trials together: gradients, transfers and failures, over each way left to NCCL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet, open_data
from labkit.sensors import rate_name
from tests.gpu.test_on_device import profile_of_this_gpu
from workbook.hardware.host import Host, this_host
from workbook.records import Epochs, Record
from workbook.records.store import Store
from workbook.records.traced import Traced
from workbook.results.from_telemetry import FIGURES
from workbook.results.missing import why_none
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.recipes import CAPTURED, COMPILED, on_devices
from workbook.trials.trial import WORDS, Trial

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def host() -> Host:
    found = this_host()
    if len(found.gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs, and this machine has one")
    return found


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=2000, val_images=200)


def run(host: Host, trials: list[Trial], folder: Path, *, timed_s: float | None = None) -> list[Record]:
    """Return one record per trial, in the order of the trials."""
    profile, store = profile_of_this_gpu(), Store(folder)
    profile = profile.model_copy(update={"device": profile.device.model_copy(update={"count": len(host.gpus)})})
    if timed_s is not None:
        timing = profile.timing_at("smoke").model_copy(update={"timed_s": timed_s})
        profile = profile.model_copy(update={"timing": {"smoke": timing}})
    measure(trials, study="01_training", session=Session(scale="smoke", profile=profile, host=host, store=store))
    by_key = {record.key: record for record in store.read("01_training", host.id)}
    return [by_key[trial.key] for trial in trials]


def assert_ok(made: list[Record]) -> None:
    assert [(record.status, record.reason) for record in made] == [("ok", None)] * len(made)


def test_two_gpus_train_one_network_in_every_supported_way(host: Host, data: DataSet, tmp_path: Path) -> None:
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
        {"model": "googlenet", "image_px": 224},  # no residual branches, so rounding grows
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
        {**on_devices(CAPTURED, 2), "model": "vgg16"},  # ranks share the update of its large layers
        {**on_devices(COMPILED, 2), "model": "vgg16"},
        {**on_devices(CAPTURED, 2), "model": "alexnet", "image_px": 224},
        {**on_devices(CAPTURED, 2), "image_px": 224},  # no side stream
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
        of = record.as_trial
        has_large = of.optimizer == "sgd_master" and of.head == "torchvision" and of.model in ("vgg16", "alexnet")
        assert bool(record.facts["shared_buckets_bytes"]) == has_large


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


@pytest.mark.parametrize(
    ("model", "fault"),
    [("resnet18", 1), ("vgg16", 2), ("vgg16", 3)],
    ids=["gradients are not averaged", "weights are not sent", "gradients are not sent"],
)
def test_the_gate_finds_an_exchange_that_a_graph_leaves_out(
    host: Host, data: DataSet, tmp_path: Path, model: str, fault: int
) -> None:
    trial = Trial(model=model, batch=32, data=data.name, data_checksum=data.checksum, **on_devices(CAPTURED, 2))
    (made,) = run(host, [replace(trial, workload="tests.faulty.train_in_buckets", size=fault)], tmp_path)
    assert made.status == "crashed" and "correctness gate" in (made.reason or "")


def test_transfers_are_slower_over_sockets_than_directly(host: Host, tmp_path: Path) -> None:
    size = 2**26
    for workload in ("all_reduce", "peer_copy"):
        trials = [
            Trial(workload=workload, devices=2, size=size, data="none", interconnect=way)
            for way in WORDS["interconnect"]
        ]
        made = run(host, trials, tmp_path)
        assert_ok(made)
        rates = []
        for record in made:
            assert record.blocks is not None
            steps = record.blocks.steps_per_block * len(record.blocks.host_s)
            rates.append(size * steps / sum(record.blocks.host_s))
        assert rates[0] > rates[2], f"{workload}: direct {rates[0]:.3g} bytes/s, sockets {rates[2]:.3g}"


def test_gpus_send_the_bytes_of_their_gradients_directly_and_over_sockets(
    host: Host, data: DataSet, tmp_path: Path
) -> None:
    wide = Trial(model="vgg16", batch=64, devices=2, data=data.name, data_checksum=data.checksum)
    for way in ("direct", "sockets"):
        pair = [replace(wide, interconnect=way), replace(wide, interconnect=way, gradient_precision="bf16")]
        made = run(host, pair, tmp_path / way, timed_s=6.0)
        assert_ok(made)
        reason = why_none(FIGURES["gradient_bytes"], made[0])
        if way == "direct" and reason:
            assert "Not Supported" in reason or "nothing went over NVLink" in reason
            continue  # these GPUs have no NVLink
        sent = [FIGURES["gradient_bytes"](record) for record in made]
        for record, value in zip(made, sent, strict=True):
            # NCCL protocols that send flags beside the data add up to 7 % (LL128) to a ring's bytes.
            assert value == pytest.approx(record.facts["exchanged_bytes_per_step"], rel=0.12), way
        assert sent[1] / sent[0] == pytest.approx(0.5, rel=0.1)


def test_nvlinks_counters_agree_with_gpm(host: Host, tmp_path: Path) -> None:
    (made,) = run(host, [Trial(workload="all_reduce", devices=2, size=2**28, data="none")], tmp_path, timed_s=24.0)
    assert_ok([made])
    assert made.telemetry is not None
    for gpu in ("gpu0", "gpu1"):
        rates = [
            made.telemetry.mean("timed", gpu, name)
            for name in (rate_name("nvlink_sent_bytes"), "nvlink_sent_bytes_per_s")
        ]
        if None in rates:
            pytest.skip(f"these GPUs lack one of the two: {made.telemetry.missing.get(gpu)}")
        assert rates[0] == pytest.approx(rates[1], rel=0.1)


def test_a_trace_shows_how_much_of_the_exchange_is_hidden(host: Host, data: DataSet, tmp_path: Path) -> None:
    one = Trial(model="resnet50", batch=64, data=data.name, data_checksum=data.checksum, traced_iterations=5)
    two, captured = replace(one, devices=2), replace(one, **CAPTURED)
    stale = replace(two, updates="asynchronous", traced_iterations=2)
    made = run(host, [one, two, captured, stale], tmp_path)
    assert_ok(made)
    traces = [record.blocks.trace for record in made if record.blocks is not None]
    alone, together, graph, late = (trace for trace in traces if isinstance(trace, Traced))
    for trace in (alone, graph):
        assert 0 < trace.busy_s <= trace.elapsed_s
        assert (trace.exchange_s, trace.hidden_exchange_share) == (0, None)
    assert (together.steps, together.of) == (5, "kernels")
    assert 0 < together.exposed_exchange_s <= together.exchange_s < together.elapsed_s
    assert together.hidden_exchange_share is not None and late.hidden_exchange_share is not None
    assert 0 < together.hidden_exchange_share < 1
    assert late.hidden_exchange_share < together.hidden_exchange_share, (
        "asynchronous updates wait for the whole backward pass"
    )
    step_s = made[1].blocks.host_s[0] / made[1].blocks.steps_per_block  # type: ignore[union-attr]
    assert together.elapsed_s / 5 > 0.5 * step_s, "a trace of five steps is five steps long"


def test_a_rank_that_raises_or_is_killed_on_a_gpu_fails_only_its_trial(
    host: Host, data: DataSet, tmp_path: Path
) -> None:
    sound = Trial(model="resnet18", batch=32, data=data.name, data_checksum=data.checksum, devices=2)
    faulty = [
        Trial(workload=f"tests.faulty.together_{how}", devices=2, size=2, data="none", device="cuda")
        for how in ("raises", "kill")
    ]
    made = run(host, [*faulty, sound], tmp_path)
    assert [record.status for record in made] == ["crashed", "crashed", "ok"]
    assert all((record.reason or "").startswith("rank 1 of 2") for record in made[:2])


def test_a_trial_on_more_gpus_than_present_is_unsupported(host: Host, data: DataSet, tmp_path: Path) -> None:
    many = len(host.gpus) + 1
    (made,) = run(host, [Trial(model="resnet18", devices=many, data=data.name, data_checksum=data.checksum)], tmp_path)
    assert made.status == "unsupported"
    assert f"asks for {many} devices" in (made.reason or "")
