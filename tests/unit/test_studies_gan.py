"""Tests of the WGAN study: its baseline, a single row per configuration, and the images of its generator."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from labkit.studies import gan

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
    rows = gan.trainings(frame({}, *others, {"workload": "matmul", "mode": "baseline"}))
    assert rows["mode"].tolist() == ["baseline", "CUDA graph", "eager", "eager", "eager"]
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


def test_pictures_are_the_first_images_of_each_grid_of_the_first_run() -> None:
    def png(level: int, edge_px: int = 4, count: int = 3) -> str:
        grid = np.full((edge_px, count * (edge_px + gan.GAP_PX) - gan.GAP_PX, 3), 255, np.uint8)
        for place in range(count):
            left = place * (edge_px + gan.GAP_PX)
            grid[:, left : left + edge_px] = level + place
        buffer = io.BytesIO()
        Image.fromarray(grid).save(buffer, format="PNG")
        return base64.b64encode(buffer.getvalue()).decode()

    rows = [
        {"pass_number": number, "image_px": 4, "field": field, "value": png(100 * number + 10 * place)}
        for number in (2, 1)
        for place, field in enumerate(["samples_real_png", "samples_png"])
    ]
    pictures = gan.pictures(pd.DataFrame(rows), each=2)
    assert pictures["title"].tolist() == ["after training", "", "real images", ""]
    assert [pixels.shape for pixels in pictures["pixels"]] == [(4, 4, 3)] * 4
    assert [set(pixels.ravel()) for pixels in pictures["pixels"]] == [{110}, {111}, {100}, {101}]
    assert gan.pictures(pd.DataFrame(rows).iloc[:0]).empty
