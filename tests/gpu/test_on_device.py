"""Claims that only a real NVIDIA GPU can test. Run `make test-all` on such a machine before an issue is resolved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.data import open_data
from labkit.timing import CudaClock
from workbook import doctor
from workbook.hardware.host import this_host
from workbook.hardware.matching import detect
from workbook.hardware.profile import Profile, Timing
from workbook.records import Record
from workbook.records.store import Store
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.recipes import CAPTURED
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload

pytestmark = pytest.mark.gpu

SHORT = Timing(warmup_s=0.2, timed_s=0.5, block_s=0.1, limit_s=120)


def profile_of_this_gpu() -> Profile:
    device = {"kind": "cuda", "pattern": ".", "count": 1}
    return Profile.model_validate(
        {"name": "here", "title": "this GPU", "device": device, "timing": {"smoke": SHORT.model_dump()}}
    )


def run(trials: list[Trial], folder: Path) -> list[Record]:
    host, store = this_host(), Store(folder)
    measure(
        trials,
        study="01_training",
        session=Session(scale="smoke", profile=profile_of_this_gpu(), host=host, store=store),
    )
    return store.read("01_training", host.id)


def test_this_gpu_is_found_and_torch_has_code_for_it() -> None:
    host = this_host()
    assert host.gpus and host.driver
    assert host.gpus[0].memory_bytes > 2**32
    torch_findings = [(fine, message) for fine, message in doctor.examine() if message.startswith("torch ")]
    assert torch_findings and all(fine is not False for fine, _ in torch_findings)
    if "H200" in host.gpus[0].name:
        profile = detect(host)
        assert profile is not None and profile.name.startswith("h200")


def test_device_events_and_host_clock_agree_on_a_long_block() -> None:
    workload = build_workload(Trial(workload="matmul", size=8192, data=NO_DATA), None)
    workload.check()
    CudaClock().time_block(workload.step, 3)
    host_s, device_s = CudaClock().time_block(workload.step, 10)
    assert device_s is not None
    assert device_s <= host_s * 1.001, "the events lie within the host's interval"
    assert host_s - device_s < 0.05 * host_s, "the host's clock adds little to a long block"


@pytest.mark.parametrize(("precision", "smallest", "largest"), [("fp32", 0.0, 2e-6), ("tf32", 2e-5, 1e-3)])
def test_fp32_means_fp32_and_tf32_is_only_used_where_asked(precision: str, smallest: float, largest: float) -> None:
    workload = build_workload(Trial(workload="matmul", size=4096, precision=precision, data=NO_DATA), None)
    out = workload.step()[:64].double()  # type: ignore[index]
    expected = workload.a[:64].double() @ workload.b.double()  # type: ignore[attr-defined]
    error = float((out - expected).norm() / expected.norm())
    assert smallest <= error < largest


def test_a_training_trial_gives_blocks_losses_and_peak_memory(tmp_path: Path) -> None:
    images = open_data("digits")
    trial = Trial(model="resnet18", batch=64, classes=10, data=images.name, data_checksum=images.checksum)
    (record,) = run([trial], tmp_path)
    assert record.status == "ok", record.reason
    blocks = record.result
    assert blocks is not None and blocks.device_s is not None and len(blocks.device_s) == len(blocks.host_s)
    assert all(loss is not None for loss in blocks.loss)
    assert record.facts["loader"] == "resident"
    assert record.facts["memory_bytes"] > 3 * record.facts["parameter_bytes"], "weights, gradients and momenta"


def test_out_of_memory_costs_only_its_trial(tmp_path: Path) -> None:
    trials = [
        Trial(workload="matmul", size=1024, data=NO_DATA),
        Trial(workload="memory_copy", size=2**42, data=NO_DATA),
        Trial(workload="memory_copy", size=2**28, data=NO_DATA),
    ]
    by_key = {record.key: record for record in run(trials, tmp_path)}
    assert [by_key[trial.key].status for trial in trials] == ["ok", "oom", "ok"]
    assert "memory" in (by_key[trials[1].key].reason or "")


@pytest.mark.slow
def test_compiled_trials_of_many_batches_stay_compiled(tmp_path: Path) -> None:
    images = open_data("digits")
    trials = [
        Trial(
            model="resnet18", batch=batch, classes=10, engine="compile", data=images.name, data_checksum=images.checksum
        )
        for batch in (16, 24)
    ]
    assert [(record.status, record.reason) for record in run(trials, tmp_path)] == [("ok", None)] * 2


def test_a_trials_memory_excludes_what_earlier_trials_left(tmp_path: Path) -> None:
    """Each captured trial has its own stream, and PyTorch keeps a cuBLAS workspace for each stream."""
    data = open_data("synthetic32", train_images=2000, val_images=200)
    plain = Trial(model="resnet18", batch=32, data=data.name, data_checksum=data.checksum)
    captured = [replace(plain, **CAPTURED, batch=batch) for batch in (16, 32, 64)]
    made = run([plain, *captured], tmp_path)
    assert [(record.status, record.facts["memory_left_bytes"]) for record in made] == [("ok", 0)] * 4
