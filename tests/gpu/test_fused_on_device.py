"""Fused kernels on a real NVIDIA GPU give the results of PyTorch's operators, in INT8 the same integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.data import DataSet, open_data
from labkit.models import build
from tests.gpu.slow import slow
from tests.prepared import predicting
from workbook.engines.batch_norm import fold_batch_norm
from workbook.engines.fused.arithmetic import Arithmetic, in_bytes, in_half
from workbook.engines.fused.graph import IMAGES, Layer
from workbook.engines.fused.network import HELD_WITHIN, FusedNetwork
from workbook.engines.fused.operations import Convolution, FirstConvolution, MaxPool, Mean, Operation
from workbook.engines.fused.tiles import FEW_ROWS, MANY_ROWS, Tile, tiles_for
from workbook.errors import GateError
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.infer import InferWorkload

pytestmark = pytest.mark.gpu

INT8: dict[str, Any] = {"engine": "triton+graph", "precision": "int8", "memory_format": "channels_last"}


def bytes_(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8, device="cuda")


def layer(channels: int, filters: int, window: int, **facts: Any) -> Layer:
    torch.manual_seed(0)
    weight = torch.randn(filters, channels, window, window, device="cuda")
    bias = torch.randn(filters, device="cuda")
    return Layer("convolution", facts.pop("inputs", (1,)), 2, "some", weight=weight, bias=bias, **facts)


def some(kind: torch.dtype, *shape: int) -> torch.Tensor:
    return bytes_(*shape) if kind == torch.int8 else torch.randn(*shape, device="cuda").to(kind)


def convolution(kind: torch.dtype, source: Layer, *, is_last: bool = False) -> Convolution:
    return Convolution(source, arithmetic(kind, source, is_last=is_last))


def arithmetic(kind: torch.dtype, source: Layer, *, is_last: bool = False) -> Arithmetic:
    if kind == torch.int8:
        return in_bytes(source, 0.02, None, 0.3, out=torch.float32) if is_last else in_bytes(source, 0.02, 0.5, 0.3)
    return in_half(source, kind, is_last=is_last)


def assert_same(operation: Operation, *inputs: torch.Tensor) -> None:
    """Assert that kernel and operators agree. A byte may differ by 1 where its sum is halfway between two steps."""
    pairs = operation(*inputs), operation(*inputs, reference=True)
    for seen, expected in zip(
        *(outputs if isinstance(outputs, tuple) else (outputs,) for outputs in pairs), strict=True
    ):
        assert_alike(seen, expected)


def assert_alike(seen: torch.Tensor, expected: torch.Tensor) -> None:
    assert seen.shape == expected.shape
    assert seen.dtype == expected.dtype
    if seen.dtype == torch.int8:
        apart = (seen.int() - expected.int()).abs()
        assert int(apart.max()) <= 1
        assert float((apart > 0).float().mean()) < 1e-4
    else:  # the order of the sums differs
        near = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[seen.dtype]
        torch.testing.assert_close(seen, expected, rtol=near, atol=near * float(expected.abs().mean()))


CASES = [  # channels, filters, window, stride, pad, edge, whether another branch is added, ReLU
    (64, 256, 1, 1, 0, 14, True, True),
    (24, 32, 3, 1, 1, 9, False, True),
    (64, 40, 3, 2, 1, 15, False, False),
    (48, 16, 5, 1, 2, 6, False, True),
    (528, 128, 1, 1, 0, 7, False, True),
    (256, 512, 1, 2, 0, 8, False, False),
]
OF_KIND = pytest.mark.parametrize("kind", [torch.int8, torch.bfloat16, torch.float16], ids=str)


def check(kind: torch.dtype, case: tuple[Any, ...], tile: Tile | None) -> None:
    channels, filters, window, stride, pad, edge, adds, relu = case
    operation = convolution(kind, layer(channels, filters, window, stride=stride, pad=pad, relu=relu))
    images = some(kind, 3, edge, edge, channels)
    size = operation(images, reference=True).shape  # type: ignore[union-attr]
    rows = size[0] * size[1] * size[2]
    operation.chosen[rows] = tile or tiles_for(rows, filters, channels, window**2, images.element_size())[0]
    assert_same(operation, images, *([some(kind, *size)] if adds else []))


@OF_KIND
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution_gives_what_pytorch_gives(kind: torch.dtype, case: tuple[Any, ...]) -> None:
    check(kind, case, None)


@pytest.mark.parametrize(
    "tile", [*FEW_ROWS, *MANY_ROWS], ids=lambda tile: f"{tile.rows}x{tile.filters}x{tile.channels}/{tile.splits}"
)
def test_a_convolution_gives_what_pytorch_gives_with_every_tile(tile: Tile) -> None:
    check(torch.int8, CASES[2], tile)


@OF_KIND
def test_a_sum_that_programs_share_is_complete_in_every_run(kind: torch.dtype) -> None:
    operation = convolution(kind, layer(512, 512, 3, pad=1, relu=True))
    images = some(kind, 2, 2, 2, 512)
    operation.chosen[8] = Tile(16, 32, 64, 4, 4, splits=8)
    first = operation(images)
    assert_same(operation, images)
    for _ in range(20):
        assert torch.equal(operation(images), first)  # type: ignore[arg-type]


@OF_KIND
def test_the_logits_stay_in_fp32(kind: torch.dtype) -> None:
    last = convolution(kind, layer(512, 1000, 1), is_last=True)
    images = some(kind, 33, 1, 1, 512)
    assert_same(last, images)


@pytest.mark.parametrize("relu", [False, True])
def test_outputs_that_a_later_layer_adds_are_also_written_in_fp16(relu: bool) -> None:
    images, branch = bytes_(3, 7, 7, 64), torch.randn(3, 7, 7, 256, device="cuda").half()
    source = layer(64, 256, 1, relu=relu)
    assert_same(Convolution(source, in_bytes(source, 0.02, 0.5, widens=True)), images, branch)
    assert_same(Convolution(source, in_bytes(source, 0.02, None, out=torch.float16)), images, branch)


@OF_KIND
def test_a_matrix_product_after_an_image_takes_the_whole_image(kind: torch.dtype) -> None:
    assert_same(convolution(kind, layer(256, 100, 6)), some(kind, 5, 6, 6, 256))


@pytest.mark.parametrize("of", [(7, 2, 3, 32), (3, 1, 1, 32), (11, 4, 2, 64), (11, 1, 2, 32)], ids=str)
@OF_KIND
def test_a_first_convolution_reads_images_in_both_memory_formats(
    kind: torch.dtype, of: tuple[int, int, int, int]
) -> None:
    window, stride, pad, edge = of
    first = layer(3, 64, window, stride=stride, pad=pad, relu=True, inputs=(IMAGES,))
    # In INT8 the kernel reads FP16, from which bytes are made, and writes both bytes and FP16.
    numbers = in_half(first, torch.float16, step=0.5, widens=True) if kind == torch.int8 else in_half(first, kind)
    operation = FirstConvolution(first, numbers)
    images = torch.randn(3, 3, edge, edge, device="cuda", dtype=numbers.weight.dtype)
    assert_same(operation, images)
    assert_same(operation, images.contiguous(memory_format=torch.channels_last))


@OF_KIND
@pytest.mark.parametrize(
    "case", [(3, 2, 1, False, 7), (3, 2, 0, True, 8), (2, 2, 0, True, 5), (3, 1, 1, True, 5)], ids=str
)
def test_a_pooling_takes_the_largest(kind: torch.dtype, case: tuple[Any, ...]) -> None:
    window, stride, pad, up, edge = case
    pool = MaxPool(Layer("max_pool", (1,), 2, "p", window=window, stride=stride, pad=pad, rounds_up=up))
    assert_same(pool, some(kind, 2, edge, edge, 40))


@OF_KIND
def test_a_mean_is_rounded_like_the_other_operations(kind: torch.dtype) -> None:
    assert_same(Mean(3.0, kind), some(kind, 3, 7, 7, 300))
    assert_same(Mean(0.3, torch.int8), some(torch.float16, 3, 7, 7, 300))


@pytest.mark.parametrize("name", slow("alexnet", "resnet50", "resnet152", "googlenet"))
def test_every_kernel_of_a_network_gives_what_pytorch_gives(name: str) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        network = build(name, image_px=32, classes=1000)
        with torch.no_grad():
            network(torch.randn(64, 3, 32, 32))
        network.eval()
        fold_batch_norm(network)
        int8 = FusedNetwork(network, torch.int8, [torch.randn(25, 3, 32, 32) for _ in range(4)], image_px=32)
        images = torch.randn(20, 3, 32, 32)
    assert max(int8.differences(images).values()) < HELD_WITHIN["int8"] / 2


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=2000, val_images=500)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_trial_in_half_precision_predicts_what_fp32_predicts(data: DataSet, precision: str) -> None:
    workload = predicting(data, model="resnet50", batch=64, **{**INT8, "precision": precision})
    workload.check()
    assert "calibration" not in workload.facts


@pytest.mark.parametrize("model", ["vgg16", *slow("resnet50", "googlenet")])
def test_a_trial_in_int8_predicts_what_fp32_predicts_and_says_how(data: DataSet, model: str) -> None:
    workload = predicting(data, model=model, batch=64, **INT8)
    workload.check()
    facts = workload.facts
    assert facts["gate"]["logits_difference"] <= facts["gate"]["logits_tolerance"]
    assert facts["kernel_difference"] < HELD_WITHIN["int8"] / 2
    assert facts["layers"]["Convolution"]["f16"] == 1
    assert facts["layers"]["Convolution"]["i8"] > 10
    assert facts["calibration"]["images"] == 1250


@pytest.mark.slow
def test_int8_trials_pass_the_gate_at_224_px_and_with_copies(data: DataSet) -> None:
    predicting(data, model="resnet18", image_px=224, batch=8, **INT8).check()
    predicting(data, model="resnet18", batch=8, copies="included", **INT8).check()


def test_a_wrong_kernel_is_found(data: DataSet) -> None:
    trial = Trial(workload="infer", model="resnet18", batch=8, data=data.name, data_checksum=data.checksum, **INT8)
    workload = build_workload(trial, data)
    assert isinstance(workload, InferWorkload)
    with pytest.raises(GateError, match="PyTorch's operators"):
        for name, prepare in workload.preparations():
            prepare()
            if name == "calibrate":
                convolution = workload._predictor._network._layers[5][1]  # type: ignore[attr-defined]
                convolution.arranged = torch.zeros_like(convolution.arranged)
