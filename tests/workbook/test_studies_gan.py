"""Tests of the WGAN study: its baseline, a single row per configuration, and the images of its generator."""

from __future__ import annotations

from typing import Any

import pandas as pd

from workbook.studies import gan

LOOP = {
    "workload": "gan",
    "mode": "eager",
    "engine": "eager",
    "precision": "fp32",
    "memory_format": "contiguous",
    "constraint": "clipping",
    "optimizer": "rmsprop",
    "samples": 0,
    "traced_iterations": 5,
    "steps_before": 0,
}


def frame(*changes: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{**LOOP, **change} for change in changes], columns=list(LOOP))


def test_only_the_papers_loop_is_the_baseline() -> None:
    others = [
        {"mode": "CUDA graph", "engine": "graph"},
        {"precision": "bf16"},
        {"memory_format": "channels_last"},
        {"constraint": "gradient_penalty", "optimizer": "adam"},
    ]
    rows = gan.trainings(frame({}, *others, {"workload": "matmul", "mode": "strict FP32"}))
    assert rows["mode"].tolist() == ["strict FP32", "CUDA graph", "eager", "eager", "eager"]
    assert gan.trainings(frame()).empty


def test_a_configuration_traced_several_times_appears_once_in_the_sweep() -> None:
    later, longer = {"steps_before": 300}, {"steps_before": 300, "traced_iterations": 200}
    drawing = {"samples": 32, "traced_iterations": 0, "steps_before": 1500}
    rows = gan.swept(frame(later, {}, longer, drawing, {"precision": "bf16"}))
    assert rows[["precision", "traced_iterations", "steps_before"]].to_numpy().tolist() == [
        ["fp32", 5, 0],
        ["bf16", 5, 0],
    ]
    assert gan.swept(frame()).empty


def test_pictures_are_the_grids_of_the_first_run() -> None:
    rows = pd.DataFrame(
        [
            {"pass_number": number, "field": field, "value": f'"{number}'}
            for number in (2, 1)
            for field in ("samples_real_png", "samples_png")
        ]
    )
    shown = gan.pictures(rows, "Images")
    assert shown.frame.columns.tolist() == ["after training", "real images"]
    assert shown._repr_mimebundle_()["text/html"].count('<img src="data:image/png;base64,&#34;1" alt=') == 2
    assert "not measured" in gan.pictures(rows.iloc[:0], "Images")._repr_mimebundle_()["text/html"]
