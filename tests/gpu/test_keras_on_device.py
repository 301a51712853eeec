"""Keras on JAX and on PyTorch trains on a real NVIDIA GPU what PyTorch trains, and releases the device."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from labkit.data import open_data
from tests.gpu.test_frameworks_on_device import used_bytes
from tests.gpu.test_on_device import SHORT, run
from tests.processes import workers_now
from workbook.hardware.host import this_host
from workbook.hardware.profile import Profile
from workbook.records import Record
from workbook.records.store import Store
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.trial import Trial

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LITTLE = 64 * 2**20  # bytes by which the driver may change the memory in use


def needs(*packages: str) -> None:
    for package in ("keras", "torch", *packages):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def needs_jax() -> None:
    """Skip without JAX and its CUDA plug-in. Do not import JAX, which would occupy the device in this process."""
    needs("jax")
    if not any(find_spec(name) for name in ("jax_cuda13_plugin", "jax_cuda12_plugin")):
        pytest.skip("JAX is installed without its plug-in for CUDA")


def resnet50(framework: str, engine: str, **fields: Any) -> Trial:
    data = open_data("synthetic32", train_images=2000, val_images=50)
    usual: dict[str, Any] = {"data": "synthetic32", "data_checksum": data.checksum, "batch": 64, "learning_rate": 1e-3}
    return Trial(framework=framework, engine=engine, **(usual | fields))


def differences(records: list[Record]) -> dict[str, float]:
    """Return the difference of each trial's first loss to PyTorch's, by precision."""
    assert {record.status for record in records} == {"ok"}, [record.reason for record in records]
    return {str(record.trial["precision"]): record.facts["gate"]["loss_difference"] for record in records}


def test_jax_trains_what_pytorch_trains_and_holds_no_gpu_memory_afterwards(tmp_path: Path) -> None:
    needs_jax()
    before_bytes = used_bytes()
    plain = resnet50("keras-jax", "xla")
    records = run([replace(plain, precision=name) for name in ("fp32", "tf32", "bf16", "fp16")], tmp_path)
    after_bytes = used_bytes()
    apart = differences(records)
    assert apart["fp32"] < min(apart["tf32"], apart["bf16"], apart["fp16"]), "FP32 is nearest to PyTorch"
    for record in records:
        assert record.facts["traces"] == 1
        assert record.facts["planned_memory_bytes"] > 100e6
        assert record.facts["memory_bytes"] is None or record.facts["memory_bytes"] > 100e6
        assert record.result is not None and record.result.kind == "blocks"
        assert all(loss is not None and 0 < loss < 20 for loss in record.result.loss)
    assert any(record.facts["memory_bytes"] for record in records), "the first trial of a process raises the peak"
    assert after_bytes <= before_bytes + LITTLE
    assert workers_now() == [], "all processes of the pass have ended"


def test_a_later_process_loads_jaxs_program_from_the_cache_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX caches each program that takes a second to compile. On a slow machine the step is not the only one."""
    needs_jax()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))  # not shared with other tests
    plain = resnet50("keras-jax", "xla", batch=48)
    first, again = (run([plain], tmp_path / name)[0] for name in ("first", "again"))
    assert first.facts["compiled_regions"]["from the cache"] == 0
    assert first.facts["compiled_regions"]["compiled"] >= 1
    assert again.facts["compiled_regions"]["from the cache"] >= first.facts["compiled_regions"]["compiled"]
    assert again.facts["first_loss"] == pytest.approx(first.facts["first_loss"], rel=1e-6)
    assert differences([first]) and differences([again])


@pytest.mark.parametrize("engine", ["eager", "compile"])
def test_keras_on_pytorch_trains_what_pytorch_trains(engine: str, tmp_path: Path) -> None:
    needs()
    plain = resnet50("keras-torch", engine)
    records = run([replace(plain, precision=name) for name in ("fp32", "bf16")], tmp_path)
    apart = differences(records)
    assert apart["fp32"] < apart["bf16"]
    assert all(record.facts["memory_bytes"] > 100e6 for record in records)
    assert {record.facts["traces"] for record in records} == ({1} if engine == "compile" else {None})


def test_jax_on_two_gpus_trains_what_pytorch_trains_with_averaged_gradients(tmp_path: Path) -> None:
    needs_jax()
    host, store = this_host(), Store(tmp_path)
    if len(host.gpus) < 2:
        pytest.skip("this machine has one GPU, and the test takes two")
    device = {"kind": "cuda", "pattern": ".", "count": 2}
    profile = Profile.model_validate(
        {"name": "here", "title": "these GPUs", "device": device, "timing": {"smoke": SHORT.model_dump()}}
    )
    trials = [resnet50("keras-jax", "xla", devices=2)]
    measure(trials, study="01_training", session=Session(scale="smoke", profile=profile, host=host, store=store))
    records = store.read("01_training", host.id)
    assert differences(records)["fp32"] < 1e-4
    assert records[0].result is not None and records[0].result.kind == "blocks"
    assert records[0].result.images_per_step == 128


def test_a_batch_that_does_not_fit_is_recorded_and_the_next_trial_runs(tmp_path: Path) -> None:
    needs_jax()
    plain = resnet50("keras-jax", "xla", model="vgg16", image_px=224)
    records = run([replace(plain, batch=6000), resnet50("keras-jax", "xla", batch=32)], tmp_path)
    assert {record.trial["batch"]: record.status for record in records} == {6000: "oom", 32: "ok"}
