"""Tests of inference with OpenVINO: the workload's gate, its facts, and the trials that it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from labkit.data import DataSet
from tests.prepared import prepared
from workbook.errors import GateError, Unsupported
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

torch = pytest.importorskip("torch")

from workbook.engines import openvino_on_cpu  # noqa: E402
from workbook.engines.inference_images import calibration_batches  # noqa: E402
from workbook.engines.openvino_on_cpu import has_bf16, missing  # noqa: E402
from workbook.hardware.limits import usable_cores  # noqa: E402
from workbook.workloads.infer import InferWorkload  # noqa: E402

PLAIN = Trial(
    workload="infer", model="resnet18", classes=10, batch=4, device="cpu", data="digits", engine="openvino", threads=1
)
needs_packages = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def int8(digits: DataSet) -> InferWorkload:
    workload = prepared(replace(PLAIN, precision="int8"), digits)
    workload.check()
    return workload


@needs_packages
def test_int8_predicts_approximately_what_the_baseline_predicts(int8: InferWorkload) -> None:
    gate = int8.facts["gate"]
    assert 1e-3 < gate["logits_difference"] < 0.5 * gate["logits_tolerance"], "a smaller difference would mean FP32"
    assert "engine_difference" not in gate, "OpenVINO has no uncompiled form"


@needs_packages
def test_fp32_predicts_what_the_baseline_predicts(digits: DataSet) -> None:
    workload = prepared(PLAIN, digits)
    workload.check()
    assert workload.facts["gate"]["logits_difference"] < 1e-4
    assert workload.facts["layers"] == {"Convolution": {"f32": 20}, "FullyConnected": {"f32": 1}}
    assert [name for name, _ in workload.preparations()] == ["reference", "convert", "compile"]


@needs_packages
@pytest.mark.skipif(missing() is not None or not has_bf16(), reason="this CPU has no BF16")
def test_bf16_convolutions_compute_in_bf16(digits: DataSet) -> None:
    workload = prepared(replace(PLAIN, precision="bf16"), digits)
    workload.check()
    assert set(workload.facts["layers"]["Convolution"]) == {"bf16"}


@needs_packages
def test_the_facts_hold_the_layers_in_int8_and_the_calibration(int8: InferWorkload) -> None:
    facts = int8.facts
    assert sum(facts["layers"]["Convolution"].values()) == 20 and set(facts["layers"]["Convolution"]) <= {"u8", "i8"}
    assert set(facts["engine_versions"]) == {"openvino", "nncf"}
    assert facts["calibration"]["batches"] == 50 and facts["calibration"]["images"] == 1250
    assert facts["threads"] == 1
    assert facts["weight_traffic_bytes_per_step"] == facts["parameters"], "a byte per weight"
    assert [name for name, _ in int8.preparations()] == ["reference", "convert", "calibrate", "compile"]


@needs_packages
def test_batch_sizes_share_the_ranges_of_a_network(
    int8: InferWorkload, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought = []
    monkeypatch.setattr(openvino_on_cpu, "quantise", lambda network, _: sought.append(network) or network)
    larger = prepared(replace(int8.trial, batch=9, queries=3), digits)
    larger.check()
    assert larger.facts["calibration"]["shared"] and not sought
    assert larger.facts["layers"] == int8.facts["layers"], "in bytes"
    prepared(replace(int8.trial, seed=1), digits)
    assert len(sought) == 1, "other weights have other ranges"


@needs_packages
def test_with_0_threads_every_core_is_used(digits: DataSet) -> None:
    workload = build_workload(replace(PLAIN, threads=0), digits)
    assert workload.facts["threads"] == usable_cores()


def test_calibration_takes_training_images_spread_over_the_split(digits: DataSet) -> None:
    batches = calibration_batches(PLAIN, digits)
    assert len(batches) == 50 and all(batch.shape == (25, 3, 32, 32) for batch in batches)
    few = replace(digits, train=type(digits.train)(digits.train.images[:30], digits.train.labels[:30]))
    assert [len(batch) for batch in calibration_batches(PLAIN, few)] == [25, 5], "each image once"


@needs_packages
def test_the_gate_finds_int8_with_wrong_ranges(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbook.engines import openvino_on_cpu as openvino_prediction

    def dark(trial: Trial, data: DataSet) -> list[torch.Tensor]:
        return [0.02 * batch for batch in calibration_batches(trial, data)]

    monkeypatch.setattr(openvino_prediction, "calibration_batches", dark)
    workload = prepared(replace(PLAIN, precision="int8"), digits)
    with pytest.raises(GateError, match="differ from the plain FP32 network's"):
        workload.check()


@pytest.mark.parametrize(("package", "precision"), [("openvino", "fp32"), ("nncf", "int8")])
def test_a_missing_package_makes_a_trial_unsupported(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch, package: str, precision: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unsupported, match=f"needs (openvino and )?{package}, not installed here"):
        build_workload(replace(PLAIN, precision=precision), digits)


def test_fp32_needs_no_quantiser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    assert "nncf" not in str(missing("fp32"))
