"""The networks in Keras, each a function from images to logits (imports Keras)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.models.inception_bn_table import ROWS, STEM
from workbook.engines.keras.networks.layers import Layers, Tensor

RESNET50_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of the 3x3 convolutions, blocks
EXPANSION = 4


def resnet50(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`: torchvision's ResNet-50, with a bottleneck's stride on its 3x3 convolution."""
    tensor = layers.convolution(images, "conv1", 64, 7, stride=2, padding=3)
    tensor = layers.relu(layers.norm(tensor, "bn1"))
    tensor = layers.max_pool(tensor, 3, stride=2, padding=1)
    for stage, (width, blocks) in enumerate(RESNET50_STAGES, start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            tensor = _bottleneck(layers, tensor, f"layer{stage}.{block}", width, stride=stride, widens=block == 0)
    return layers.dense(layers.mean(tensor), "fc", classes)


def _bottleneck(layers: Layers, tensor: Tensor, name: str, width: int, *, stride: int, widens: bool) -> Tensor:
    kept = tensor
    if widens:
        kept = layers.convolution(tensor, f"{name}.downsample.0", EXPANSION * width, 1, stride=stride)
        kept = layers.norm(kept, f"{name}.downsample.1")
    tensor = layers.relu(layers.norm(layers.convolution(tensor, f"{name}.conv1", width, 1), f"{name}.bn1"))
    tensor = layers.convolution(tensor, f"{name}.conv2", width, 3, stride=stride, padding=1)
    tensor = layers.relu(layers.norm(tensor, f"{name}.bn2"))
    tensor = layers.norm(layers.convolution(tensor, f"{name}.conv3", EXPANSION * width, 1), f"{name}.bn3")
    return layers.relu(layers.add([tensor, kept]))


VGG16_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters, convolutions before each pooling
VGG16_DROPOUT = 0.5


def vgg16(layers: Layers, images: Tensor, *, classes: int, head: str, **_: Any) -> Tensor:
    """Return the logits of `images`: torchvision's VGG-16, without batch norm.

    torchvision's head replicates 1x1 features to 7x7; `head512` takes them 1x1."""
    tensor, place = images, 0  # the index of a layer in PyTorch's `features`
    for filters, convolutions in VGG16_STAGES:
        for _number in range(convolutions):
            tensor = layers.relu(layers.convolution(tensor, f"features.{place}", filters, 3, padding=1, bias=True))
            place += 2
        tensor = layers.max_pool(tensor, 2, stride=2)
        place += 1
    small = head == "head512" and layers.edges(tensor) == (1, 1)
    if not small and layers.edges(tensor) == (1, 1):
        tensor = layers.replicate(tensor, 7)
    # torchvision initialises its head explicitly; the small head starts with the defaults of PyTorch's layers.
    units = 512 if small else 4096
    initial: dict[str, Any] = {} if small else {"spread": 0.01, "zero_bias": True}
    tensor = layers.flatten(tensor)
    for name in ("classifier.0", "classifier.3"):
        tensor = layers.dropout(layers.relu(layers.dense(tensor, name, units, **initial)), VGG16_DROPOUT)
    return layers.dense(tensor, "classifier.6", classes, **initial)


GOOGLENET_DROPOUT = 0.2
# Filters: 1x1; 1x1 and the 3x3 after it; 1x1 and the second 3x3 after it; the 1x1 after the pooling.
GOOGLENET_MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
POOLED_AFTER = {"3b": 3, "4e": 2}  # window of the max pooling after a module


def googlenet(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`: torchvision's GoogLeNet.

    It has batch norm, no biases, and 3x3 where the paper has 5x5.
    """
    tensor = layers.block(images, "conv1", 64, 7, stride=2, padding=3)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    tensor = layers.block(tensor, "conv2", 64, 1)
    tensor = layers.block(tensor, "conv3", 192, 3, padding=1)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    for name, filters in GOOGLENET_MODULES.items():
        tensor = _googlenet_module(layers, tensor, f"inception{name}", filters)
        if name in POOLED_AFTER:
            tensor = layers.max_pool(tensor, POOLED_AFTER[name], stride=2, ceil=True)
    return layers.dense(layers.dropout(layers.mean(tensor), GOOGLENET_DROPOUT), "fc", classes)


def _googlenet_module(layers: Layers, tensor: Tensor, name: str, filters: tuple[int, ...]) -> Tensor:
    one, reduce, three, second_reduce, second, project = filters
    first = layers.block(tensor, f"{name}.branch1", one, 1)
    wide = layers.block(tensor, f"{name}.branch2.0", reduce, 1)
    wide = layers.block(wide, f"{name}.branch2.1", three, 3, padding=1)
    wider = layers.block(tensor, f"{name}.branch3.0", second_reduce, 1)
    wider = layers.block(wider, f"{name}.branch3.1", second, 3, padding=1)
    pooled = layers.max_pool(tensor, 3, stride=1, padding=1, ceil=True)
    pooled = layers.block(pooled, f"{name}.branch4.1", project, 1)
    return layers.concatenate([first, wide, wider, pooled])


def inception_bn(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`: Inception-BN, from the table that PyTorch's network has too."""
    first, reduced, channels = STEM
    tensor = layers.block(images, "conv1", first, 7, stride=2, padding=3)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    tensor = layers.block(tensor, "conv2", reduced, 1)
    tensor = layers.block(tensor, "conv3", channels, 3, padding=1)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    for row in ROWS:
        name = f"inception{row.name}"
        branches = [layers.block(tensor, f"{name}.branch1", row.one, 1)] if row.one else []
        three = layers.block(tensor, f"{name}.branch2.0", row.reduce, 1)
        branches.append(layers.block(three, f"{name}.branch2.1", row.three, 3, stride=row.stride, padding=1))
        double = layers.block(tensor, f"{name}.branch3.0", row.double_reduce, 1)
        double = layers.block(double, f"{name}.branch3.1", row.double, 3, padding=1)
        branches.append(layers.block(double, f"{name}.branch3.2", row.double, 3, stride=row.stride, padding=1))
        pool = layers.average_pool if row.pool == "average" else layers.max_pool
        pooled = pool(tensor, 3, stride=row.stride, padding=1)
        if row.project:
            pooled = layers.block(pooled, f"{name}.branch4.1", row.project, 1)
        tensor = layers.concatenate([*branches, pooled])
    return layers.dense(layers.mean(tensor), "fc", classes)


INCEPTION_V3_DROPOUT = 0.5
ROW: dict[str, Any] = {"window": (1, 7), "padding": (0, 3)}
COLUMN: dict[str, Any] = {"window": (7, 1), "padding": (3, 0)}


def inception_v3(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`: torchvision's Inception-v3, without its normalisation of images."""
    tensor = layers.block(images, "Conv2d_1a_3x3", 32, 3, stride=2)
    tensor = layers.block(tensor, "Conv2d_2a_3x3", 32, 3)
    tensor = layers.max_pool(layers.block(tensor, "Conv2d_2b_3x3", 64, 3, padding=1), 3, stride=2)
    tensor = layers.block(tensor, "Conv2d_3b_1x1", 80, 1)
    tensor = layers.max_pool(layers.block(tensor, "Conv2d_4a_3x3", 192, 3), 3, stride=2)
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        tensor = _inception_a(layers, tensor, f"Mixed_5{letter}", pooled)
    tensor = _inception_b(layers, tensor, "Mixed_6a")
    for letter, width in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        tensor = _inception_c(layers, tensor, f"Mixed_6{letter}", width)
    tensor = _inception_d(layers, tensor, "Mixed_7a")
    for letter in ("b", "c"):
        tensor = _inception_e(layers, tensor, f"Mixed_7{letter}")
    return layers.dense(layers.dropout(layers.mean(tensor), INCEPTION_V3_DROPOUT), "fc", classes)


def _inception_a(layers: Layers, tensor: Tensor, name: str, pool_filters: int) -> Tensor:
    one = layers.block(tensor, f"{name}.branch1x1", 64, 1)
    five = layers.block(tensor, f"{name}.branch5x5_1", 48, 1)
    five = layers.block(five, f"{name}.branch5x5_2", 64, 5, padding=2)
    double = layers.block(tensor, f"{name}.branch3x3dbl_1", 64, 1)
    double = layers.block(double, f"{name}.branch3x3dbl_2", 96, 3, padding=1)
    double = layers.block(double, f"{name}.branch3x3dbl_3", 96, 3, padding=1)
    return layers.concatenate([one, five, double, _pooled(layers, tensor, name, pool_filters)])


def _inception_b(layers: Layers, tensor: Tensor, name: str) -> Tensor:
    three = layers.block(tensor, f"{name}.branch3x3", 384, 3, stride=2)
    double = layers.block(tensor, f"{name}.branch3x3dbl_1", 64, 1)
    double = layers.block(double, f"{name}.branch3x3dbl_2", 96, 3, padding=1)
    double = layers.block(double, f"{name}.branch3x3dbl_3", 96, 3, stride=2)
    return layers.concatenate([three, double, layers.max_pool(tensor, 3, stride=2)])


def _inception_c(layers: Layers, tensor: Tensor, name: str, width: int) -> Tensor:
    one = layers.block(tensor, f"{name}.branch1x1", 192, 1)
    seven = layers.block(tensor, f"{name}.branch7x7_1", width, 1)
    seven = layers.block(seven, f"{name}.branch7x7_2", width, **ROW)
    seven = layers.block(seven, f"{name}.branch7x7_3", 192, **COLUMN)
    double = layers.block(tensor, f"{name}.branch7x7dbl_1", width, 1)
    for number, shape in ((2, COLUMN), (3, ROW), (4, COLUMN)):
        double = layers.block(double, f"{name}.branch7x7dbl_{number}", width, **shape)
    double = layers.block(double, f"{name}.branch7x7dbl_5", 192, **ROW)
    return layers.concatenate([one, seven, double, _pooled(layers, tensor, name, 192)])


def _inception_d(layers: Layers, tensor: Tensor, name: str) -> Tensor:
    three = layers.block(tensor, f"{name}.branch3x3_1", 192, 1)
    three = layers.block(three, f"{name}.branch3x3_2", 320, 3, stride=2)
    seven = layers.block(tensor, f"{name}.branch7x7x3_1", 192, 1)
    seven = layers.block(seven, f"{name}.branch7x7x3_2", 192, **ROW)
    seven = layers.block(seven, f"{name}.branch7x7x3_3", 192, **COLUMN)
    seven = layers.block(seven, f"{name}.branch7x7x3_4", 192, 3, stride=2)
    return layers.concatenate([three, seven, layers.max_pool(tensor, 3, stride=2)])


def _inception_e(layers: Layers, tensor: Tensor, name: str) -> Tensor:
    one = layers.block(tensor, f"{name}.branch1x1", 320, 1)
    three = layers.block(tensor, f"{name}.branch3x3_1", 384, 1)
    double = layers.block(tensor, f"{name}.branch3x3dbl_1", 448, 1)
    double = layers.block(double, f"{name}.branch3x3dbl_2", 384, 3, padding=1)
    three = _both_ways(layers, three, f"{name}.branch3x3_2")
    double = _both_ways(layers, double, f"{name}.branch3x3dbl_3")
    return layers.concatenate([one, three, double, _pooled(layers, tensor, name, 192)])


def _both_ways(layers: Layers, tensor: Tensor, name: str) -> Tensor:
    row = layers.block(tensor, f"{name}a", 384, (1, 3), padding=(0, 1))
    column = layers.block(tensor, f"{name}b", 384, (3, 1), padding=(1, 0))
    return layers.concatenate([row, column])


def _pooled(layers: Layers, tensor: Tensor, name: str, filters: int) -> Tensor:
    averaged = layers.average_pool(tensor, 3, stride=1, padding=1)
    return layers.block(averaged, f"{name}.branch_pool", filters, 1)


# Each network, and the standard deviation of its initial weights if they do not follow PyTorch's layers.
NETWORKS: dict[str, tuple[Callable[..., Tensor], float | None]] = {
    "resnet50": (resnet50, None),
    "vgg16": (vgg16, None),
    "googlenet": (googlenet, 0.01),
    "inception_bn": (inception_bn, 0.01),
    "inception_v3": (inception_v3, 0.1),
}
