"""Fused kernels without a GPU: a network is read into its layers, ranges are right, and the integers predict well."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from labkit.models import build  # noqa: E402
from workbook.engines.batch_norm import fold_batch_norm  # noqa: E402
from workbook.engines.fused import tiles  # noqa: E402
from workbook.engines.fused.arithmetic import best_range, calibrate, histogram, in_bytes, in_half  # noqa: E402
from workbook.engines.fused.graph import IMAGES, Layer, read  # noqa: E402
from workbook.engines.fused.network import HELD_WITHIN, FusedNetwork  # noqa: E402
from workbook.engines.fused.operations import Convolution, FirstConvolution, MaxPool, Operation  # noqa: E402
from workbook.engines.fused.tiles import ENOUGH_PROGRAMS, FEW, Tile, tiles_for  # noqa: E402
from workbook.errors import Unsupported  # noqa: E402

NETWORKS = ["resnet18", "resnet50", "vgg16", "googlenet", "alexnet"]
QUANTISED = {"resnet18": 21, "resnet50": 54, "vgg16": 16, "googlenet": 58, "alexnet": 8}  # counted in their papers


def pictures(count: int, px: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, px, px, generator=torch.Generator().manual_seed(seed))


def settled(name: str) -> nn.Module:
    """Return a network whose batch norms have seen images and are folded."""
    return deepcopy(settled_once(name))


@lru_cache(maxsize=3)
def settled_once(name: str) -> nn.Module:
    torch.manual_seed(0)
    network = build(name, image_px=32, classes=10)
    with torch.no_grad():
        for seed in range(4):
            network(pictures(32, seed=seed))
    network.eval()
    fold_batch_norm(network)
    return network


@pytest.mark.parametrize("name", NETWORKS)
def test_the_layers_compute_what_the_network_computes(name: str) -> None:
    network = settled(name)
    graph = read(network, 32)
    with torch.no_grad():
        torch.testing.assert_close(graph.run(pictures(3)), network(pictures(3)), rtol=1e-4, atol=1e-5)
    assert sum(layer.kind == "convolution" for layer in graph.layers) == QUANTISED[name]


def test_a_residual_is_added_by_the_convolution_that_ends_its_block() -> None:
    graph = read(settled("resnet18"), 32)
    added = [layer for layer in graph.layers if layer.adds is not None]
    assert len(added) == 8
    assert all(layer.relu for layer in added)
    made = {layer.output: place for place, layer in enumerate(graph.layers)}
    for layer in added:  # the other branch is computed before
        assert made[layer.adds] < made[layer.output]


def test_every_value_is_freed_after_its_last_use_and_not_before() -> None:
    graph = read(settled("googlenet"), 32)
    alive = {IMAGES}
    for layer, done in zip(graph.layers, graph.last_uses(), strict=True):
        assert alive >= set(layer.inputs)
        alive = (alive | {layer.output}) - set(done)
    assert alive == {graph.result}


class AddsWhatIsRectified(nn.Module):
    """A network that adds a rectified value, for which there is no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.one(images) + nn.functional.relu(self.other(images))


@pytest.mark.parametrize(
    ("module", "what"),
    [
        (nn.Conv2d(3, 6, 3, groups=3), "grouped"),
        (nn.Conv2d(3, 6, 3, stride=(1, 2)), "differs between its two directions"),
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.Sigmoid()), "no 1"),
        (nn.Sequential(nn.Conv2d(3, 6, 3), nn.MaxPool2d(2, dilation=2)), "dilated"),
        (AddsWhatIsRectified(), "no <built-in function add>"),
    ],
)
def test_a_layer_without_a_kernel_is_unsupported(module: nn.Module, what: str) -> None:
    with pytest.raises(Unsupported, match=what):
        read(nn.Sequential(module).eval() if isinstance(module, nn.Conv2d) else module.eval(), 32)


def test_a_network_in_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="training mode"):
        read(build("resnet18", image_px=32, classes=10), 32)


# ---- ranges ---------------------------------------------------------------------------------------------------------


def test_a_uniform_distribution_keeps_its_range_and_a_rare_outlier_is_clipped() -> None:
    uniform = torch.rand(4, 50_000, generator=torch.Generator().manual_seed(0)) * 8
    assert best_range(histogram(uniform, 8.0), 8.0) == pytest.approx(8.0, rel=0.05)
    normal = torch.randn(500, 1000, generator=torch.Generator().manual_seed(0))
    alone, normal[0] = best_range(histogram(normal, 5.0), 5.0), 100 * normal[0]  # an image far larger than the others
    largest = float(normal.abs().max())
    assert best_range(histogram(normal, largest), largest) < 2 * alone


def test_the_best_range_beats_its_neighbours_on_the_values_themselves() -> None:
    values = torch.randn(1, 100_000, generator=torch.Generator().manual_seed(1)).abs() ** 1.5
    largest = float(values.max())

    def error(most: float) -> float:
        step = most / 127
        return float((((values / step).round().clamp(max=127) * step - values) ** 2).sum())

    best = best_range(histogram(values, largest), largest)
    assert error(best) <= 1.05 * min(error(best * factor) for factor in (0.6, 0.8, 1.25, 1.6))
    assert error(best) < error(largest)


def test_values_that_are_only_moved_keep_their_range() -> None:
    graph = read(settled("googlenet"), 32)
    steps = calibrate(graph, [pictures(16)])
    for layer in graph.layers:
        if layer.kind in ("max_pool", "concatenate"):
            assert {steps[number] for number in layer.inputs} == {steps[layer.output]}


def test_without_images_or_with_infinite_activations_there_is_no_range() -> None:
    graph = read(settled("resnet18"), 32)
    with pytest.raises(ValueError, match="no calibration images"):
        calibrate(graph, [])
    with pytest.raises(ValueError, match="not finite"):
        calibrate(graph, [pictures(2) * float("inf")])


def test_a_value_that_is_always_zero_still_has_a_step() -> None:
    graph = read(nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU(), nn.Conv2d(4, 2, 32)).eval(), 32)
    steps = calibrate(graph, [torch.zeros(2, 3, 32, 32)])
    assert all(step > 0 for step in steps.values())


# ---- the integers ---------------------------------------------------------------------------------------------------

# Error of INT8 against FP32, as a share of the logits' spread over images. Ranges three times too wide triple it.
LARGEST_ERROR = {"resnet18": 0.15, "alexnet": 0.3}


def error_of(fused: FusedNetwork, network: nn.Module) -> float:
    """Return the error of the logits, divided by their spread around the mean over images."""
    images = pictures(16, seed=9)
    with torch.no_grad():
        expected = network(images)
    return float((fused.reference(images) - expected).norm() / (expected - expected.mean(dim=0)).norm())


@pytest.mark.parametrize("name", LARGEST_ERROR)
def test_the_integers_predict_nearly_what_fp32_predicts(name: str) -> None:
    network = settled(name)
    int8 = FusedNetwork(network, torch.int8, [pictures(25, seed=seed) for seed in range(4)], image_px=32)
    assert error_of(int8, network) < LARGEST_ERROR[name]
    described = int8.describe()["layers"]
    assert described["Convolution"]["i8"] + described["FullyConnected"]["i8"] == QUANTISED[name] - 1
    assert described["Convolution"]["f16"] == 1  # the first one, which reads the images


@pytest.mark.parametrize(("kind", "most"), [(torch.float16, 0.01), (torch.bfloat16, 0.06)])
def test_half_precision_predicts_nearly_what_fp32_predicts(kind: torch.dtype, most: float) -> None:
    network = settled("resnet18")
    assert 0 < error_of(FusedNetwork(network, kind, image_px=32), network) < most


def test_wrong_ranges_show_in_the_logits() -> None:
    network = settled("resnet18")
    assert error_of(FusedNetwork(network, torch.int8, [pictures(25) / 5], image_px=32), network) > 0.3


def layer_of(channels: int, filters: int, window: int, **facts: Any) -> Layer:
    torch.manual_seed(0)
    weight = torch.randn(filters, channels, window, window)
    made = Layer("convolution", (1,), 2, "some", weight=weight, bias=torch.randn(filters))
    return replace(made, **facts)


def test_a_convolution_of_bytes_equals_the_rounded_convolution_of_their_values() -> None:
    layer = layer_of(8, 6, 3, stride=2, pad=1, relu=True)
    convolution = Convolution(layer, in_bytes(layer, 0.02, 0.5, 0.25))
    images = torch.randint(-127, 128, (2, 9, 9, 8), dtype=torch.int8)
    branch = torch.randint(-127, 128, (2, 5, 5, 6), dtype=torch.int8)
    weight = convolution.weight.float() * (layer.weight.flatten(1).abs().amax(1) / 127)[:, None, None, None]
    expected = torch.nn.functional.conv2d(images.permute(0, 3, 1, 2) * 0.02, weight, layer.bias, 2, 1)
    expected = (expected + branch.permute(0, 3, 1, 2) * 0.25).relu() / 0.5
    computed = convolution(images, branch, reference=True).permute(0, 3, 1, 2).float()
    assert (computed - expected.clamp(max=127)).abs().max() <= 0.501
    assert computed.min() == 0


def test_values_that_a_residual_adds_stay_in_fp16_beside_the_bytes() -> None:
    network = settled("resnet50")
    int8 = FusedNetwork(network, torch.int8, [pictures(25)], image_px=32)
    written = [(op.arithmetic.out, op.arithmetic.widens) for _, op in int8._layers if isinstance(op, Convolution)]
    assert written.count((torch.int8, True)) == 12  # values that a block of the same width both adds and multiplies
    assert written.count((torch.float16, False)) == 4  # branches that are only added
    assert written.count((torch.float32, False)) == 1  # the logits
    layer = layer_of(8, 6, 1, relu=True)
    convolution = Convolution(layer, in_bytes(layer, 0.02, 0.5, widens=True))
    rounded, wide = convolution(torch.randint(-127, 128, (2, 3, 3, 8), dtype=torch.int8), reference=True)
    assert wide.dtype == torch.float16
    assert float((wide.float() / 0.5 - rounded.float())[rounded < 127].abs().max()) < 0.51


def test_a_first_convolutions_weights_are_arranged_by_squares_of_pixels() -> None:
    conv = FirstConvolution(first_layer(), in_half(first_layer(), torch.float16))
    assert conv.arranged.shape == (4, 4, 4, 16)  # 7 pixels in 4 squares of 2; 12 channels, and 4 of zeros
    assert int(conv.arranged[..., 12:].abs().sum()) == 0
    assert float(conv.arranged.double().abs().sum()) == float(conv.weight.double().abs().sum())
    assert torch.equal(conv.arranged[:, 1, 2, 3 * 2 : 3 * 3], conv.weight[:, :, 3, 4])  # square (1, 2), pixel (1, 0)


def first_layer() -> Layer:
    return replace(layer_of(3, 4, 7, stride=2, pad=3), inputs=(IMAGES,))


def test_a_first_convolution_rounds_its_result_and_not_the_images() -> None:
    layer = first_layer()
    convolution = FirstConvolution(layer, in_half(layer, torch.float16, step=0.5, widens=True))
    images = pictures(2)
    exact = torch.nn.functional.conv2d(images, layer.weight, layer.bias, stride=2, padding=3)
    rounded, wide = convolution(images, reference=True)
    assert rounded.dtype == torch.int8
    computed = rounded.permute(0, 3, 1, 2).float()
    assert float((computed - (exact / 0.5).clamp(-127, 127)).abs().max()) < 0.55  # half a step, and FP16's own rounding
    torch.testing.assert_close(wide.permute(0, 3, 1, 2).float(), exact, rtol=2e-3, atol=0.05)


@pytest.mark.parametrize(
    ("broken", "kind"), [(7, torch.int8), (0, torch.int8), (3, torch.bfloat16), (None, torch.int8)]
)
def test_a_layer_with_a_wrong_kernel_is_named(
    broken: int | None, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation in Operation.__subclasses__():
        monkeypatch.setattr(operation, "_by_kernel", operation._by_pytorch)
    monkeypatch.setattr(FirstConvolution, "_by_kernel", FirstConvolution._by_pytorch)
    network = FusedNetwork(settled("resnet18"), kind, [pictures(25)], image_px=32)
    layers = [(layer.name, op) for layer, op in network._layers if isinstance(op, Convolution)]
    if broken is not None:
        name, convolution = layers[broken]

        def with_a_wrong_pixel(*inputs: torch.Tensor) -> object:
            result = convolution._by_pytorch(*inputs)
            first = result[0] if isinstance(result, tuple) else result
            first[0, 0, 0] += 2
            return result

        monkeypatch.setattr(convolution, "_by_kernel", with_a_wrong_pixel)
    differences_of = network.differences(pictures(8, seed=3))
    assert set(differences_of) == {layer.name for layer, _ in network._layers}
    wrong = [layer for layer, apart in differences_of.items() if apart > HELD_WITHIN["int8"]]
    assert wrong == ([] if broken is None else [name])


@pytest.mark.parametrize("edge", [5, 6, 7, 8])
def test_a_pooling_has_pytorchs_size(edge: int) -> None:
    for window, stride, pad, up in [(3, 2, 0, True), (3, 2, 1, False), (3, 1, 1, True), (2, 2, 0, True)]:
        layer = replace(layer_of(1, 1, 1), kind="max_pool", window=window, stride=stride, pad=pad, rounds_up=up)
        size = nn.MaxPool2d(window, stride, pad, ceil_mode=up)(torch.zeros(1, 1, edge, edge)).shape[-1]
        assert MaxPool(layer)._size(edge) == size


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 100_000])
@pytest.mark.parametrize(("filters", "channels"), [(10, 24), (64, 64), (2048, 512)])
def test_tiles_fit_tensor_cores_and_are_no_wider_than_the_product(rows: int, filters: int, channels: int) -> None:
    tiles = tiles_for(rows, filters, channels, 9, 1)
    assert len(set(tiles)) == len(tiles) > 0
    for tile in tiles:
        assert tile.rows >= 16
        assert 16 <= tile.filters < max(17, 2 * filters)
        assert 32 <= tile.channels < max(33, 2 * channels)
        shares = 9 * -(-channels // tile.channels) / tile.splits
        assert tile.splits == 1 or (shares >= 2 and -(-rows // tile.rows) * tile.splits <= ENOUGH_PROGRAMS)


def test_the_fastest_tile_of_a_shape_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Tile] = []

    def time_of(run: partial[None]) -> float:
        tried.append(run.args[0])
        return 1.0 / run.args[0].rows

    monkeypatch.setattr(tiles, "_found", {})
    monkeypatch.setattr(tiles, "_time_s", time_of)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    small, large = Tile(16, 32, 64, 4, 4), Tile(64, 32, 64, 4, 4)
    assert tiles.fastest(lambda _tile: None, [small, large], of="a shape") == large
    assert tiles.fastest(lambda _tile: None, [small, large], of="a shape") == large
    assert len(tried) == 2
    assert tiles.fastest(lambda _tile: None, [small, large], of="another") == large
    assert len(tried) == 4


def test_a_device_that_no_tile_fits_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfResources(Exception):
        pass

    def refuse(_run: object) -> float:
        raise OutOfResources("shared memory")

    monkeypatch.setattr(tiles, "_time_s", refuse)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.raises(Unsupported, match="no tile"):
        tiles.fastest(lambda _tile: None, [Tile(16, 32, 64, 4, 4), Tile(64, 32, 64, 4, 4)], of="a third shape")
