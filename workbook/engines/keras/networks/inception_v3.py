"""Inception-v3 in Keras, with torchvision's layers but without torchvision's normalisation of images."""

from __future__ import annotations

from typing import Any

from workbook.engines.keras.networks.layers import Layers, Tensor

SPREAD = 0.1  # standard deviation of initial weights
DROPOUT = 0.5
ROW: dict[str, Any] = {"window": (1, 7), "padding": (0, 3)}
COLUMN: dict[str, Any] = {"window": (7, 1), "padding": (3, 0)}


def outputs(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`."""
    tensor = layers.block(images, "Conv2d_1a_3x3", 32, 3, stride=2)
    tensor = layers.block(tensor, "Conv2d_2a_3x3", 32, 3)
    tensor = layers.max_pool(layers.block(tensor, "Conv2d_2b_3x3", 64, 3, padding=1), 3, stride=2)
    tensor = layers.block(tensor, "Conv2d_3b_1x1", 80, 1)
    tensor = layers.max_pool(layers.block(tensor, "Conv2d_4a_3x3", 192, 3), 3, stride=2)
    for letter, pooled in (("b", 32), ("c", 64), ("d", 64)):
        tensor = _a(layers, tensor, f"Mixed_5{letter}", pooled)
    tensor = _b(layers, tensor, "Mixed_6a")
    for letter, width in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        tensor = _c(layers, tensor, f"Mixed_6{letter}", width)
    tensor = _d(layers, tensor, "Mixed_7a")
    for letter in ("b", "c"):
        tensor = _e(layers, tensor, f"Mixed_7{letter}")
    return layers.dense(layers.dropout(layers.mean(tensor), DROPOUT), "fc", classes)


def _a(layers: Layers, tensor: Tensor, name: str, pool_filters: int) -> Tensor:
    one = layers.block(tensor, f"{name}.branch1x1", 64, 1)
    five = layers.block(tensor, f"{name}.branch5x5_1", 48, 1)
    five = layers.block(five, f"{name}.branch5x5_2", 64, 5, padding=2)
    double = layers.block(tensor, f"{name}.branch3x3dbl_1", 64, 1)
    double = layers.block(double, f"{name}.branch3x3dbl_2", 96, 3, padding=1)
    double = layers.block(double, f"{name}.branch3x3dbl_3", 96, 3, padding=1)
    return layers.concatenate([one, five, double, _pooled(layers, tensor, name, pool_filters)])


def _b(layers: Layers, tensor: Tensor, name: str) -> Tensor:
    three = layers.block(tensor, f"{name}.branch3x3", 384, 3, stride=2)
    double = layers.block(tensor, f"{name}.branch3x3dbl_1", 64, 1)
    double = layers.block(double, f"{name}.branch3x3dbl_2", 96, 3, padding=1)
    double = layers.block(double, f"{name}.branch3x3dbl_3", 96, 3, stride=2)
    return layers.concatenate([three, double, layers.max_pool(tensor, 3, stride=2)])


def _c(layers: Layers, tensor: Tensor, name: str, width: int) -> Tensor:
    one = layers.block(tensor, f"{name}.branch1x1", 192, 1)
    seven = layers.block(tensor, f"{name}.branch7x7_1", width, 1)
    seven = layers.block(seven, f"{name}.branch7x7_2", width, **ROW)
    seven = layers.block(seven, f"{name}.branch7x7_3", 192, **COLUMN)
    double = layers.block(tensor, f"{name}.branch7x7dbl_1", width, 1)
    for number, shape in ((2, COLUMN), (3, ROW), (4, COLUMN)):
        double = layers.block(double, f"{name}.branch7x7dbl_{number}", width, **shape)
    double = layers.block(double, f"{name}.branch7x7dbl_5", 192, **ROW)
    return layers.concatenate([one, seven, double, _pooled(layers, tensor, name, 192)])


def _d(layers: Layers, tensor: Tensor, name: str) -> Tensor:
    three = layers.block(tensor, f"{name}.branch3x3_1", 192, 1)
    three = layers.block(three, f"{name}.branch3x3_2", 320, 3, stride=2)
    seven = layers.block(tensor, f"{name}.branch7x7x3_1", 192, 1)
    seven = layers.block(seven, f"{name}.branch7x7x3_2", 192, **ROW)
    seven = layers.block(seven, f"{name}.branch7x7x3_3", 192, **COLUMN)
    seven = layers.block(seven, f"{name}.branch7x7x3_4", 192, 3, stride=2)
    return layers.concatenate([three, seven, layers.max_pool(tensor, 3, stride=2)])


def _e(layers: Layers, tensor: Tensor, name: str) -> Tensor:
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
