"""Tests of training in Keras: each back end gives PyTorch's losses, traces its step once, and fails alone.

A process can load only one Keras back end, so each installed one has its own process (`tests/keras_steps.py`).
"""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.data import open_data
from labkit.data.order import EpochOrder
from labkit.errors import UserError
from labkit.models import count
from labkit.timing import HostClock
from tests.faulty.campaign import records, run
from tests.processes import result_of
from workbook.engines.keras import back_end as keras_state
from workbook.engines.keras import reference, support
from workbook.engines.keras.training import HostBatches
from workbook.errors import GateError, Unsupported, is_out_of_memory
from workbook.hardware.frameworks import KNOWN
from workbook.paths import ROOT
from workbook.trials.trial import FRAMEWORKS, Trial
from workbook.workloads import build_workload

ON_CPU = {"device": "cpu", "model": "resnet50", "batch": 4}


def needs(framework: str) -> None:
    for package in ("torch", *KNOWN[framework].packages):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


# ---- steps ----------------------------------------------------------------------------------------------------------


@cache
def done(framework: str, jobs: tuple[str, ...]) -> dict[str, Any]:
    """Run these jobs in a process and return their results by job. Jobs on two devices get a CPU that JAX splits."""
    split = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} if jobs == ON_TWO else {}
    return result_of("tests.keras_steps", *jobs, KERAS_BACKEND=KNOWN[framework].backend, **split)


THOROUGH = {"keras-torch": ("eager",), "keras-tensorflow": ("function", "gate"), "keras-jax": ()}
SLOW = {
    "keras-torch": ("compile",),
    "keras-tensorflow": ("eager", "xla", "dropout"),
    "keras-jax": ("xla", "gate", "dropout"),
}
ON_TWO = ("xla:2",)


def found(framework: str, job: str) -> dict[str, Any]:
    needs(framework)
    group = THOROUGH[framework] if job in THOROUGH[framework] else SLOW[framework]
    result: dict[str, Any] = done(framework, group)[job]
    return result


def cases(*wanted: str) -> list[Any]:
    """Return each framework with those of the wanted jobs that it has."""
    groups = ((pytest.mark.thorough, THOROUGH), (pytest.mark.slow, SLOW))
    return [
        pytest.param(name, job, marks=mark)
        for mark, group in groups
        for name, jobs in group.items()
        for job in jobs
        if job in wanted
    ]


KEPT = """
import sys

import jax
from workbook.engines.keras.on_jax import keep_programs, programs

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
before = programs()
keep_programs()
jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((8, 8))).block_until_ready()
print(before, jax.config.jax_compilation_cache_dir, programs(), sep="|")
"""


def test_a_jax_program_is_compiled_once_and_then_read_from_the_disk(tmp_path: Path) -> None:
    needs("keras-jax")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "LABKIT_CACHE": str(tmp_path / "cache")}

    def state(**settings: str) -> tuple[str, str, dict[str, int]]:
        run_ = [sys.executable, "-c", KEPT]
        done_ = subprocess.run(run_, env=environment | settings, cwd=ROOT, capture_output=True, text=True, check=True)
        before, folder, counted = done_.stdout.strip().split("|")
        return before, folder, ast.literal_eval(counted)

    (before, folder, first), (*_, again) = state(), state()
    assert before == "None", "without keep_programs() nothing is kept"
    assert folder == str(tmp_path / "cache" / "xla")
    assert first["from the cache"] == 0 < first["compiled"]
    assert again["compiled"] == 0 < again["from the cache"]
    assert state(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))[1] == str(tmp_path / "own"), "the user's choice stays"


ENGINES = cases("eager", "function", "xla", "compile")


@pytest.mark.parametrize(("framework", "engine"), ENGINES)
def test_losses_of_the_loop_equal_pytorchs(framework: str, engine: str) -> None:
    result = found(framework, engine)
    losses, expected = result["losses"], result["torch"]
    assert losses[0] == pytest.approx(expected[0], rel=1e-4)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert abs(expected[1] / expected[0] - 1) > 0.02, "a step that barely changes the loss would prove nothing"
    assert result["finite"] and result["none_after"], "reading the sum of losses resets it to 0"
    assert result["moved"] == result["weights"], "steps after the compared ones update the model too"


@pytest.mark.slow
def test_jax_on_two_devices_equals_pytorch_with_averaged_gradients() -> None:
    needs("keras-jax")
    result = done("keras-jax", ON_TWO)[ON_TWO[0]]
    losses, expected = result["losses"], result["torch"]
    assert losses[0] == pytest.approx(expected[0], rel=1e-4)
    assert losses == pytest.approx(expected, rel=1e-3)
    assert result["traces"] == 1
    alone = done("keras-jax", SLOW["keras-jax"])["xla"]["losses"]
    assert abs(losses[0] / alone[0] - 1) > 1e-3, "a single device normalises over all images, two over their halves"


@pytest.mark.parametrize(("framework", "engine"), ENGINES)
def test_the_step_is_traced_once_over_many_steps_and_batches(framework: str, engine: str) -> None:
    result = found(framework, engine)
    if engine == "eager":
        assert result["traces"] is None and result["phases"] == []
    elif framework == "keras-torch":
        assert 1 <= result["traces"] == result["traces_after_three"], "later steps compile no more graphs"
    else:
        assert result["traces"] == 1
        assert result["phases"] == (["trace", "compile"] if engine == "xla" else ["trace"])


@pytest.mark.parametrize(("framework", "job"), cases("gate"))
def test_a_first_loss_other_than_pytorchs_fails_the_gate(framework: str, job: str) -> None:
    result = found(framework, job)
    assert result["right"]["loss_difference"] < result["right"]["loss_tolerance"] == 1e-4
    for case in ("other images", "other weights"):
        assert "first loss" in result[case], case
    after, initial = result["restarted"]
    assert after == pytest.approx(initial, rel=1e-4), "the gate restores the weights that it changes"
    assert abs(result["right"]["expected_loss"] / initial - 1) > 1e-3, "the gate's weights gave another loss"


@pytest.mark.parametrize(("framework", "job"), cases("dropout"))
def test_the_gate_compares_without_dropout_and_training_uses_dropout(framework: str, job: str) -> None:
    result = found(framework, job)
    assert result["gate"]["loss_difference"] < 1e-4
    assert "nothing dropped" in result["gate"]["against"]
    assert result["first"] != result["gate"]["expected_loss"] and result["rates"] == [0.5, 0.5]


# ---- as trials ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_trial_of_keras_gives_a_record_with_its_facts(tmp_path: Path) -> None:
    """`test_frameworks` makes the processes of frameworks fail."""
    needs("keras-tensorflow")
    data = open_data("synthetic32", train_images=64, val_images=8)
    # Its trace is shorter than ResNet-50's.
    about = ON_CPU | {"model": "vgg16", "head": "head512", "data": data.name, "data_checksum": data.checksum}
    sound = Trial(framework="keras-tensorflow", engine="function", **about)
    run([sound, replace(sound, framework="keras-jax", engine="eager")], tmp_path, limit_s=300)
    by_framework = {record.framework: record for record in records(tmp_path)}
    statuses = {name: record.status for name, record in by_framework.items()}
    assert statuses == {"keras-tensorflow": "ok", "keras-jax": "unsupported"}
    record = by_framework["keras-tensorflow"]
    assert record.result is not None and record.result.kind == "blocks" and record.result.device_s is None
    assert record.result.images_per_step == 4
    assert record.facts["traces"] == 1
    assert record.facts["parameters"] == count("vgg16", head="head512").parameters
    assert record.facts["gate"]["loss_difference"] < 1e-4
    assert record.facts["first_step_s"] == pytest.approx(record.phases_s["trace"] + record.phases_s["first_step"])
    assert record.facts["build_s"] == record.phases_s["build"]


# ---- unsupported trials ---------------------------------------------------------------------------------------------


def test_a_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "find_spec", lambda name: None if name == "jax" else name)
    asked = Trial(framework="keras-jax", engine="xla", **ON_CPU)
    with pytest.raises(Unsupported, match="jax is not installed"):
        build_workload(asked, open_data("digits"))


@pytest.mark.parametrize("engine", ["function", "xla"])
def test_pytorch_without_keras_has_no_keras_engines(engine: str) -> None:
    pytest.importorskip("torch")
    for workload in ("train", "infer"):
        with pytest.raises(Unsupported, match="without Keras"):
            build_workload(Trial(workload=workload, engine=engine, **ON_CPU), open_data("digits"))


def test_keras_only_trains_and_unknown_frameworks_are_refused() -> None:
    with pytest.raises(UserError, match=r"framework='keras-jax' .* workload infer: .*\(train, "):
        Trial(workload="infer", framework="keras-jax")
    with pytest.raises(UserError, match="unknown trial framework 'keras-tensorflw'; valid: keras-tensorflow, "):
        Trial(framework="keras-tensorflw")
    assert all(Trial(framework=name).framework == name for name in FRAMEWORKS)
    assert Trial(framework="keras-jax", devices=4).processes == 1


# ---- the gate, batches, the clock, memory ---------------------------------------------------------------------------


def judged(first: float, **about: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"expected": 7.0, "undropped": None, "precision": "fp32"}
    return reference.judge(first, **(usual | about))


def test_the_gate_tolerates_only_rounding() -> None:
    assert judged(7.0006)["loss_difference"] == pytest.approx(0.0006 / 7)
    with pytest.raises(GateError, match=r"7\.001000 .* 7\.000000"):
        judged(7.001)
    assert judged(7.001, precision="tf32")["loss_tolerance"] == 5e-4
    with pytest.raises(GateError, match="loss is nan"):
        judged(float("nan"))


def test_with_dropout_the_gate_checks_the_losses_without_and_with_it() -> None:
    assert judged(7.2, undropped=7.0001)["loss_difference"] < 1e-4
    with pytest.raises(GateError, match="differ by"):
        judged(7.0, undropped=7.2)
    with pytest.raises(GateError, match=r"dropout .* 8\.0000"):
        judged(8.0, undropped=7.0)


def test_batches_come_in_the_loaders_order_and_share_no_memory() -> None:
    split = open_data("digits").train
    batches, order = HostBatches(split, batch=100, seed=3), EpochOrder(len(split), seed=3)
    seen = [batches.next_batch() for _ in range(20)]  # past the end of an epoch
    for images, labels in seen:
        chosen = order.take(100)
        assert images.dtype == np.uint8 and labels.dtype == np.int32
        assert np.array_equal(images, split.images[chosen]) and np.array_equal(labels, split.labels[chosen])
    for (first, _), (second, _) in itertools.pairwise(seen):
        assert not np.shares_memory(first, second)
    batches.rewind()
    assert np.array_equal(batches.next_batch()[0], seen[0][0])
    with pytest.raises(UserError, match="at least 1"):
        HostBatches(split, batch=0, seed=0)


def test_a_block_begins_and_ends_with_the_frameworks_wait() -> None:
    did: list[str] = []
    host_s, device_s = HostClock(lambda: did.append("wait")).time_block(lambda: did.append("step"), 3)
    assert did == ["wait", "step", "step", "step", "wait"]
    assert host_s > 0 and device_s is None


def test_a_memory_peak_of_an_earlier_trial_is_missing_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"peak_bytes_in_use": 500}
    monkeypatch.setattr(keras_state, "_jax_counters", lambda: counters)
    monkeypatch.setattr(keras_state, "_jax_peak_before", 400)
    assert keras_state.peak_memory_of_keras("keras-jax", "cuda")["memory_bytes"] == 500
    monkeypatch.setattr(keras_state, "_jax_peak_before", 500)
    facts = keras_state.peak_memory_of_keras("keras-jax", "cuda")
    assert facts["memory_bytes"] is None and facts["memory_reason"]


class ResourceExhaustedError(Exception):
    """An error with the name of TensorFlow's."""


def test_out_of_memory_errors_of_each_framework_are_recognised() -> None:
    assert is_out_of_memory(ResourceExhaustedError("OOM"))
    assert is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: 9 bytes"))
    assert not is_out_of_memory(RuntimeError("INVALID_ARGUMENT: shapes"))
