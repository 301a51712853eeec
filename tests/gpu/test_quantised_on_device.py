"""Decode steps with INT8 and FP8 weights on a GPU: they pass their gate, and read fewer bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.models import open_network
from labkit.timing import CudaClock
from tests.prepared import checked
from workbook.paths import ROOT
from workbook.trace import memory_of_step
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.trial import NO_DATA, Trial

pytest.importorskip("torchao")
pytestmark = pytest.mark.gpu

# Two of the sixteen layers, because Inductor takes a minute and a half for all. A tied embedding keeps its precision.
SMALLER = {"layers: int = 16": "layers: int = 2", "VOCABULARY, KEY_HEADS = 128_256": "VOCABULARY, KEY_HEADS = 1024"}


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_captured_decode_step_with_quantised_weights_passes_its_gate(precision: str, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "decode.py").read_text(encoding="utf-8")
    for usual, smaller in SMALLER.items():
        assert usual in text
        text = text.replace(usual, smaller)
    file = tmp_path / f"two_layers_{precision}.py"
    file.write_text(text, encoding="utf-8")
    trial = Trial(
        workload="own_prediction",
        model=open_network(str(file)).name,
        workload_source=source_hash_of_file(file),
        engine="compile+graph",
        memory_format="channels_last",
        precision=precision,
        batch=32,
        data=NO_DATA,
    )
    workload = checked(trial, None, network=str(file))
    assert workload.facts["gate"]["answer_difference"] > 0
    assert workload.facts["weight_traffic_bytes_per_step"] < 0.7 * workload.facts["parameter_bytes"]
    traced = memory_of_step(workload.step, CudaClock(), workload.held, on_gpu=True)
    assert traced.weights == workload.facts["weight_traffic_bytes_per_step"], "a traced step counts the same bytes"
