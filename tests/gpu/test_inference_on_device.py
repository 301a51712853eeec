"""Inference on a real NVIDIA GPU: engines and precisions predict what the baseline predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet, open_data
from tests.gpu.slow import slow
from tests.prepared import predicting
from workbook.engines.state import peak_memory
from workbook.errors import GateError
from workbook.runner.preparing import Data, prepared_workload
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.today import open_today
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import _weights

pytestmark = pytest.mark.gpu

TUNED: dict[str, Any] = {"engine": "graph", "precision": "bf16", "memory_format": "channels_last"}


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=2000, val_images=500)


@pytest.mark.parametrize("model", ["resnet50", "vgg16", "googlenet"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"precision": "tf32", "engine": "graph"},
        {"precision": "fp16", "engine": "graph", "memory_format": "channels_last"},
        TUNED,
        {**TUNED, "copies": "included"},
        {"copies": "included", "precision": "bf16"},
    ],
    ids=lambda fields: "-".join(fields.values()) or "plain",
)
def test_every_engine_and_precision_predicts_what_the_baseline_predicts(
    data: DataSet, model: str, fields: dict[str, Any]
) -> None:
    workload = predicting(data, model=model, batch=64, **fields)
    workload.check()
    assert workload.facts["gate"]["logits_difference"] <= workload.facts["gate"]["logits_tolerance"]


def test_a_compiled_and_captured_prediction_is_right_at_224_px_too(data: DataSet) -> None:
    workload = predicting(data, model="resnet18", image_px=224, batch=8, **{**TUNED, "engine": "compile+graph"})
    workload.check()


def test_the_gate_finds_a_captured_prediction_that_repeats_a_batch(data: DataSet) -> None:
    workload = predicting(data, model="resnet18", batch=64, **TUNED)
    workload._pool.batches[1] = workload._pool.batches[0]
    with pytest.raises(GateError, match="difference between two batches"):
        workload.check()


@pytest.mark.parametrize("model", ["resnet18", *slow("vgg16", "googlenet", "alexnet")])
def test_weights_are_trained_once_and_scored_by_every_engine_alike(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few epochs on the handwritten digits suffice to learn them, and rounding changes few predictions.

    The usual schedules are for sets of 50,000 images. On the 1,500 digits their rate takes VGG-16 to the edge of
    divergence, where cuDNN's choice of convolution algorithms decides whether the network learns.
    """
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setitem(_weights.SCHEDULES, model, _weights.Schedule(epochs=12, learning_rate=0.01))
    digits = open_data("digits")
    scored: dict[str, Any] = {"weights": "trained", "scored": len(digits.val), "classes": digits.classes, "batch": 64}
    first = predicting(digits, model=model, **scored)
    assert first.build_phases["weights"] > 0
    plain = first.score(lambda _: None)
    assert plain.share("top1") > 0.5
    (file,) = (tmp_path / "weights").iterdir()
    written_ns = file.stat().st_mtime_ns
    again = predicting(digits, model=model, **scored, **TUNED)
    again.check()
    captured = again.score(lambda _: None)
    assert file.stat().st_mtime_ns == written_ns, "the weights come from the file"
    assert (captured.weights_sha256, captured.images_sha256) == (plain.weights_sha256, plain.images_sha256)
    assert float((captured.hits("top1") != plain.hits("top1")).mean()) < 0.05


def test_a_peak_holds_nothing_of_the_correctness_check() -> None:
    network = open_today("llama_1b")
    assert network.path
    trial = Trial(
        workload="own_prediction",
        model="llama_1b",
        workload_source=source_hash_of_file(network.path),
        batch=8,
        data=NO_DATA,
        precision="bf16",
        memory_format="channels_last",
    )
    peaks = []
    for gate_passed in (False, True):
        workload, _ = prepared_workload(trial, 1, Data(), print, print, gate_passed=gate_passed)
        workload.step()
        peaks.append(peak_memory("cuda")["memory_bytes"])
        workload.close()
        del workload
    assert peaks[0] < 1.02 * peaks[1]
