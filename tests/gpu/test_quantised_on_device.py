"""Decode steps with INT8 and FP8 weights on a GPU: they pass their gate, and read fewer bytes."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.timing import CudaClock
from workbook.trace import memory_of_step
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.today import open_today
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload

pytest.importorskip("torchao")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_captured_decode_step_with_quantised_weights_passes_its_gate(precision: str) -> None:
    network = open_today("llama_1b")
    about: dict[str, Any] = {"engine": "compile+graph", "memory_format": "channels_last", "precision": precision}
    workload_trial = Trial(
        workload="own_prediction",
        model="llama_1b",
        workload_source=source_hash_of_file(network.path) if network.path else "",
        batch=32,
        data=NO_DATA,
        **about,
    )
    workload = build_workload(workload_trial, None)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    assert workload.facts["gate"]["answer_difference"] > 0
    assert workload.facts["weight_traffic_bytes_per_step"] < 0.7 * workload.facts["parameter_bytes"]
    traced = memory_of_step(workload.step, CudaClock(), workload.held, on_gpu=True)
    assert traced.weights == workload.facts["weight_traffic_bytes_per_step"], "a traced step counts the same bytes"
