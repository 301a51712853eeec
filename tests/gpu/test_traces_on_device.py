"""Traces of a real NVIDIA GPU agree with its counters, and few steps give the results of many."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet, open_data
from tests.gpu.test_on_device import profile_of_this_gpu
from workbook.hardware.host import Host, this_host
from workbook.records import Record
from workbook.records.store import Store
from workbook.records.traced import SECTIONS, Traced
from workbook.results.from_result import value_of
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.recipes import CAPTURED
from workbook.trials.trial import Trial

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=2000, val_images=200)


@pytest.fixture(scope="module")
def host() -> Host:
    return this_host()


def run(
    host: Host, trials: list[Trial], folder: Path, *, timed_s: float = 0.5, devices: int = 1, keeps_traces: bool = False
) -> list[Record]:
    """Return one record per trial, in the order of the trials. Assert that all are ok."""
    profile, store = profile_of_this_gpu(), Store(folder)
    timing = profile.timing_at("smoke").model_copy(update={"timed_s": timed_s, "limit_s": 300})
    device = profile.device.model_copy(update={"count": devices})
    profile = profile.model_copy(update={"device": device, "timing": {"smoke": timing}})
    session = Session(scale="smoke", profile=profile, host=host, store=store, keeps_traces=keeps_traces)
    measure(trials, study="01_training", session=session)
    by_key = {record.key: record for record in store.read("01_training", host.id)}
    made = [by_key[trial.key] for trial in trials]
    assert [(record.status, record.reason) for record in made] == [("ok", None)] * len(made)
    return made


def traced(record: Record) -> Traced:
    assert record.blocks is not None
    assert isinstance(record.blocks.trace, Traced), record.blocks.trace
    return record.blocks.trace


def timed_step_s(record: Record) -> float:
    assert record.blocks is not None
    return record.blocks.timed_s / (record.blocks.steps_per_block * len(record.blocks.host_s))


def training(data: DataSet, **fields: Any) -> Trial:
    about: dict[str, Any] = {"model": "resnet50", "batch": 64, "traced_iterations": 20, **fields}
    return Trial(data=data.name, data_checksum=data.checksum, **about)


@pytest.mark.slow
def test_busy_time_agrees_with_the_devices_own_counters(host: Host, data: DataSet, tmp_path: Path) -> None:
    wide, narrow = training(data, model="vgg16", batch=512), training(data, model="resnet18", batch=16)
    made = run(host, [wide, narrow], tmp_path, timed_s=6.0)
    for record in made:
        trace = traced(record)
        busy = trace.busy_s / trace.steps / timed_step_s(record)
        assert record.telemetry is not None
        seen = record.telemetry.mean("timed", "gpu0", "utilisation")
        if seen is not None:
            # NVML counts a period of 1/6 s as busy if any kernel ran in it, so its utilisation is an upper bound.
            assert busy <= seen + 0.1, record.key
        activity = record.telemetry.mean("timed", "gpu0", "sm_activity")
        if activity is not None:  # the mean over multiprocessors of the time in which each had a warp
            assert 0.2 * busy <= activity <= busy + 0.05, record.key
    assert traced(made[0]).busy_s / traced(made[0]).elapsed_s > 0.9, "large batches leave the device no gap"
    assert traced(made[1]).launch_gap_s, "small batches wait for their launches"


@pytest.mark.slow
def test_five_traced_steps_give_the_results_of_two_hundred(host: Host, data: DataSet, tmp_path: Path) -> None:
    few, many = run(host, [training(data, traced_iterations=n) for n in (5, 200)], tmp_path)
    short, long = traced(few), traced(many)
    assert (short.steps, len(short.pieces), long.steps) == (5, 1, 200)
    for kind in {*short.kernels, *long.kernels}:
        shares = [
            trace.kernels[kind].seconds / trace.kernel_s if kind in trace.kernels else 0.0 for trace in (short, long)
        ]
        assert abs(shares[0] - shares[1]) < 0.02, kind
    assert long.kernels["other"].seconds < 0.05 * long.kernel_s if "other" in long.kernels else True
    assert sum(piece.steps for piece in long.pieces) == 200


def test_sections_hold_the_kernels_that_they_launch(host: Host, data: DataSet, tmp_path: Path) -> None:
    (made,) = run(host, [training(data)], tmp_path)
    trace = traced(made)
    assert set(trace.sections) == set(SECTIONS)
    inside = sum(section.kernel_s for section in trace.sections.values())
    assert inside == pytest.approx(trace.kernel_s, rel=0.02), "every kernel of a step is launched in a section"
    assert trace.sections["backward"].kernel_s > trace.sections["forward"].kernel_s > 0
    assert trace.sections["backward"].calls["launch"].count > 0
    memory = trace.memory
    assert memory is not None
    assert memory.weights == memory.gradients == memory.optimiser == made.facts["parameter_bytes"]
    assert memory.peak is not None and memory.activations is not None
    assert memory.peak > memory.weights + memory.optimiser + memory.activations * 0.9
    assert memory.allocations is not None and memory.allocations > 100


@pytest.mark.slow
def test_a_captured_step_has_kernels_and_no_sections(host: Host, data: DataSet, tmp_path: Path) -> None:
    plain, captured = run(host, [training(data), training(data, **CAPTURED)], tmp_path)
    trace = traced(captured)
    assert trace.kernels["convolution"].count > 0
    assert (trace.sections, len(trace.notes) > 0) == ({}, True)
    assert trace.calls["launch"].count < traced(plain).calls["launch"].count / 10
    assert trace.memory is not None
    assert (trace.memory.activations, trace.memory.peak) == (None, None)
    busy = trace.busy_s / trace.steps / timed_step_s(captured)
    assert 0.5 < busy < 1.1


@pytest.mark.slow
def test_traced_steps_do_not_change_timed_steps(host: Host, data: DataSet, tmp_path: Path) -> None:
    trial = training(data, model="vgg16", batch=256)
    with_trace, without = run(host, [trial, replace(trial, traced_iterations=0)], tmp_path, timed_s=3.0)
    assert timed_step_s(with_trace) == pytest.approx(timed_step_s(without), rel=0.05)


def test_a_short_trace_gives_the_device_time_of_a_long_one(host: Host, data: DataSet, tmp_path: Path) -> None:
    trials = [training(data, batch=64, traced_iterations=steps) for steps in (20, 0)]
    trials += [replace(trial, **CAPTURED) for trial in trials]
    long, short, long_captured, short_captured = run(host, trials, tmp_path)
    for one, other in ((long, short), (long_captured, short_captured)):
        assert other.blocks is not None and other.blocks.trace is None
        for metric in ("busy_step_s", "kernels_per_step"):
            assert value_of(other, metric) == pytest.approx(value_of(one, metric), rel=0.03)
        by_class = other.facts["kernel_step_s"]
        classes = {kind: total.seconds / traced(one).steps for kind, total in traced(one).kernels.items()}
        for kind in ("convolution", "matrix_product", "batch_norm", "pooling"):  # sections decide on some of the others
            assert by_class[kind] == pytest.approx(classes[kind], rel=0.1, abs=2e-6)
        # Kernels that run at once count in their classes and once as busy time, in the long trace too.
        overlap = sum(classes.values()) / value_of(one, "busy_step_s")
        assert sum(by_class.values()) / other.facts["busy_step_s"] == pytest.approx(overlap, rel=0.05)
        assert other.phases_s["short_trace"] < 5


def test_a_short_trace_does_not_change_the_trials_after_it(host: Host, data: DataSet, tmp_path: Path) -> None:
    # The same captured step, of six seeds: the first runs before any trace of the process.
    captured = training(data, batch=64, traced_iterations=0, **CAPTURED)
    made = run(host, [replace(captured, seed=number) for number in range(6)], tmp_path)
    made.sort(key=lambda record: record.process.position)
    assert len({record.process.id for record in made}) == 1
    first, *later = map(timed_step_s, made)
    assert later == pytest.approx([first] * len(later), rel=0.02)


@pytest.mark.slow
def test_a_trace_after_further_steps_is_kept_as_a_file(host: Host, data: DataSet, tmp_path: Path) -> None:
    (made,) = run(host, [training(data, traced_iterations=5, steps_before=300)], tmp_path, keeps_traces=True)
    assert traced(made).steps_before >= 300
    with gzip.open(tmp_path / made.facts["trace_file"], "rt") as packed:
        assert any(row.get("cat") == "kernel" for row in json.load(packed)["traceEvents"])


@pytest.mark.slow
def test_one_process_trains_on_two_gpus(host: Host, data: DataSet, tmp_path: Path) -> None:
    if len(host.gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs, and this machine has one")
    about: dict[str, Any] = {"devices": 2, "scaling": "strong", "batch": 64, "traced_iterations": 5}
    split = [training(data, model=model, parallel="one_process", **about) for model in ("alexnet", "vgg16", "resnet18")]
    ranks = training(data, model="resnet18", **about)
    made = run(host, [*split, ranks], tmp_path, devices=2)
    assert [one.facts["data_parallel"]["of"] for one in made[:3]] == [
        "the convolutions (features)",
        "the convolutions (features)",
        "the network",
    ]
    for record in made:
        assert record.devices_used == 2
        assert record.facts["gate"]["change_difference"] <= record.facts["gate"]["change_tolerance"]
        assert record.telemetry is not None
        seen = {name for window in record.telemetry.windows.values() for name in window.sources if name[:3] == "gpu"}
        assert seen == {"gpu0", "gpu1"}
        assert record.blocks is not None and record.blocks.images_per_step == 64
        assert all(loss is not None for loss in record.blocks.loss)
    assert traced(made[2]).broadcast_s > 0, "the weights are copied to the second device in each step"
    assert made[0].process.id != made[3].process.id, "a trial in one process has no ranks"


@pytest.mark.slow
def test_two_gpus_in_one_process_learn_what_one_learns(host: Host, tmp_path: Path) -> None:
    if len(host.gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs, and this machine has one")
    digits = open_data("digits")
    images: dict[str, Any] = {"data": digits.name, "data_checksum": digits.checksum, "classes": 10}
    whole = Trial(model="resnet18", batch=64, epochs=4, **images)
    convolutions = Trial(model="alexnet", batch=64, epochs=15, learning_rate=0.02, **images)
    on_two: dict[str, Any] = {"devices": 2, "scaling": "strong", "parallel": "one_process"}
    trials = [trial for alone in (whole, convolutions) for trial in (alone, replace(alone, **on_two))]
    reached = {}
    for record in run(host, trials, tmp_path, devices=2):
        assert record.epochs is not None
        reached[record.trial["model"], record.as_trial.devices] = [one.top1 for one in record.epochs.epochs]
    assert all(course[-1] > 0.75 for course in reached.values()), reached
