"""Tests of study 08_quantization: the fastest mode of each precision, printed losses, and layers in bytes."""

from __future__ import annotations

import pandas as pd
import pytest

from workbook.results import ratio
from workbook.studies.quantization import layers_in_bytes, printed_loss
from workbook.studies.sweeps import fastest

OF_SIZE = ["model", "image_px", "batch", "precision"]
# precision, mode, images/s of each run
MEASURED = [
    ("fp32", "strict FP32", (100.0, 100.0)),
    ("fp32", "compiled", (140.0, 60.0)),  # the same arithmetic mean and a smaller geometric mean
    ("bf16", "CUDA graph", (800.0, 820.0)),
    ("int8", "CUDA graph", (900.0, 910.0)),
]


def rows(measured: list[tuple[str, str, tuple[float, ...]]], batch: int = 64) -> pd.DataFrame:
    about = {"model": "resnet50", "image_px": 32, "batch": batch, "host": "a"}
    return pd.DataFrame(
        [
            {**about, "precision": precision, "mode": mode, "pass_number": number, "images_per_s": value}
            for precision, mode, values in measured
            for number, value in enumerate(values, start=1)
        ]
    )


def test_the_fastest_mode_of_each_precision_has_the_largest_geometric_mean() -> None:
    chosen = fastest(rows(MEASURED), OF_SIZE, ["mode"])
    assert dict(zip(chosen["precision"], chosen["mode"], strict=True)) == {
        "fp32": "strict FP32",
        "bf16": "CUDA graph",
        "int8": "CUDA graph",
    }
    assert len(chosen) == 6
    gains = ratio(chosen, "images_per_s", over={"precision": "bf16"}, by=["batch", "precision"])
    assert gains.set_index("precision")["value"]["int8"] == pytest.approx((900 / 800 * 910 / 820) ** 0.5)


def test_each_size_has_its_own_fastest_mode() -> None:
    larger = [("fp32", "compiled", (300.0,)), ("fp32", "strict FP32", (200.0,))]
    chosen = fastest(pd.concat([rows(MEASURED), rows(larger, batch=256)]), OF_SIZE, ["mode"])
    assert chosen.query("precision == 'fp32'").groupby("batch")["mode"].unique().map(list).to_dict() == {
        64: ["strict FP32"],
        256: ["compiled"],
    }


def test_only_a_precision_without_results_keeps_its_failed_modes() -> None:
    nan = float("nan")
    failed = rows([("int8", "CUDA graph", (nan,)), ("fp32", "compiled", (nan,)), ("fp32", "strict FP32", (50.0,))])
    chosen = fastest(failed, OF_SIZE, ["mode"])
    assert sorted(zip(chosen["precision"], chosen["mode"], strict=True)) == [
        ("fp32", "strict FP32"),
        ("int8", "CUDA graph"),
    ]
    assert fastest(failed.iloc[:0], OF_SIZE, ["mode"]).empty


def test_a_papers_loss_is_recomputed_from_its_accuracies() -> None:
    lost = printed_loss("08_quantization", "top1").set_index("model")
    assert lost["value"]["googlenet"] == pytest.approx(0.0018)
    assert lost["value"]["resnet50"] == pytest.approx(0.0006)  # the paper prints 0.07 points
    assert set(lost["label"]) == {"Dell V100 paper"}
    assert printed_loss("01_training", "top1").empty


def test_layers_that_compute_in_bytes_are_counted_per_kind() -> None:
    about = {"model": "resnet50", "image_px": 32, "mode": "OpenVINO"}
    layers = pd.DataFrame(
        [
            {**about, "record": record, "precision": precision, "field": field, "value": value}
            for record in ("file:1", "file:2")
            for precision, field, value in [
                ("int8", "Convolution.u8", 52),
                ("int8", "Convolution.i8", 1),
                ("int8", "FullyConnected.f32", 1),
                ("fp32", "Convolution.f32", 53),
            ]
        ]
    )
    counted = layers_in_bytes(layers).set_index("kind")[["in_bytes", "layers"]]
    assert counted.T.to_dict() == {
        "Convolution": {"in_bytes": 53, "layers": 53},
        "FullyConnected": {"in_bytes": 0, "layers": 1},
    }
    assert layers_in_bytes(layers.iloc[:0]).empty
