"""Inception-BN in Keras, from the same table as `labkit.models.inception_bn` for PyTorch."""

from __future__ import annotations

from typing import Any

from labkit.models.inception_bn_table import ROWS, STEM, Row
from workbook.engines.keras.networks.layers import Layers, Tensor

SPREAD = 0.01  # standard deviation of initial weights


def outputs(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`."""
    first, reduced, channels = STEM
    tensor = layers.block(images, "conv1", first, 7, stride=2, padding=3)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    tensor = layers.block(tensor, "conv2", reduced, 1)
    tensor = layers.block(tensor, "conv3", channels, 3, padding=1)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    for row in ROWS:
        tensor = _module(layers, tensor, f"inception{row.name}", row)
    return layers.dense(layers.mean(tensor), "fc", classes)


def _module(layers: Layers, tensor: Tensor, name: str, row: Row) -> Tensor:
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
    return layers.concatenate([*branches, pooled])
