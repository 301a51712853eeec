"""GoogLeNet in Keras, with torchvision's layers: batch norm in each block, no biases, 3x3 where the paper has 5x5."""

from __future__ import annotations

from typing import Any

from workbook.engines.keras.networks.layers import Layers, Tensor

SPREAD = 0.01  # standard deviation of initial weights
DROPOUT = 0.2
# Filters: 1x1; 1x1 and the 3x3 after it; 1x1 and the second 3x3 after it; the 1x1 after the pooling.
MODULES = {
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


def outputs(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`."""
    tensor = layers.block(images, "conv1", 64, 7, stride=2, padding=3)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    tensor = layers.block(tensor, "conv2", 64, 1)
    tensor = layers.block(tensor, "conv3", 192, 3, padding=1)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    for name, filters in MODULES.items():
        tensor = _module(layers, tensor, f"inception{name}", filters)
        if name in POOLED_AFTER:
            tensor = layers.max_pool(tensor, POOLED_AFTER[name], stride=2, ceil=True)
    return layers.dense(layers.dropout(layers.mean(tensor), DROPOUT), "fc", classes)


def _module(layers: Layers, tensor: Tensor, name: str, filters: tuple[int, ...]) -> Tensor:
    one, reduce, three, second_reduce, second, project = filters
    first = layers.block(tensor, f"{name}.branch1", one, 1)
    wide = layers.block(tensor, f"{name}.branch2.0", reduce, 1)
    wide = layers.block(wide, f"{name}.branch2.1", three, 3, padding=1)
    wider = layers.block(tensor, f"{name}.branch3.0", second_reduce, 1)
    wider = layers.block(wider, f"{name}.branch3.1", second, 3, padding=1)
    pooled = layers.max_pool(tensor, 3, stride=1, padding=1, ceil=True)
    pooled = layers.block(pooled, f"{name}.branch4.1", project, 1)
    return layers.concatenate([first, wide, wider, pooled])
