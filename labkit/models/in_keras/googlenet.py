"""GoogLeNet as torchvision has it: batch norm in each block, no biases before it, 3x3 where the paper has 5x5."""

from __future__ import annotations

from typing import Any

from labkit.models.in_keras.layers import Layers, Tensor

SPREAD = 0.01
DROPOUT, DROPOUT_OF_AUX = 0.2, 0.7
# Filters: 1x1; 3x3 and the 1x1 before it; the second 3x3 and the 1x1 before it; the 1x1 after the pooling.
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
POOLED_AFTER = {"3b": 3, "4e": 2}  # the window of the maximum that follows a module
AUX_AFTER = {"4a": "aux1", "4d": "aux2"}


def outputs(layers: Layers, images: Tensor, *, classes: int, aux: bool, **_: Any) -> Tensor:
    """Logits, then with `aux` those of the second and of the first auxiliary head."""
    tensor = layers.block(images, "conv1", 64, 7, stride=2, padding=3, spread=SPREAD)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    tensor = layers.block(tensor, "conv2", 64, 1, spread=SPREAD)
    tensor = layers.block(tensor, "conv3", 192, 3, padding=1, spread=SPREAD)
    tensor = layers.max_pool(tensor, 3, stride=2, ceil=True)
    heads: list[Tensor] = []
    for name, filters in MODULES.items():
        tensor = _module(layers, tensor, f"inception{name}", filters)
        if aux and name in AUX_AFTER:
            heads.insert(0, _aux(layers, tensor, AUX_AFTER[name], classes))
        if name in POOLED_AFTER:
            tensor = layers.max_pool(tensor, POOLED_AFTER[name], stride=2, ceil=True)
    logits = layers.dense(layers.dropout(layers.mean(tensor), DROPOUT), "fc", classes, spread=SPREAD)
    return [logits, *heads] if aux else logits


def _module(layers: Layers, tensor: Tensor, name: str, filters: tuple[int, ...]) -> Tensor:
    one, reduce, three, second_reduce, second, project = filters
    first = layers.block(tensor, f"{name}.branch1", one, 1, spread=SPREAD)
    wide = layers.block(tensor, f"{name}.branch2.0", reduce, 1, spread=SPREAD)
    wide = layers.block(wide, f"{name}.branch2.1", three, 3, padding=1, spread=SPREAD)
    wider = layers.block(tensor, f"{name}.branch3.0", second_reduce, 1, spread=SPREAD)
    wider = layers.block(wider, f"{name}.branch3.1", second, 3, padding=1, spread=SPREAD)
    pooled = layers.max_pool(tensor, 3, stride=1, padding=1, ceil=True)
    pooled = layers.block(pooled, f"{name}.branch4.1", project, 1, spread=SPREAD)
    return layers.concatenate([first, wide, wider, pooled])


def _aux(layers: Layers, tensor: Tensor, name: str, classes: int) -> Tensor:
    tensor = layers.block(layers.adaptive_pool(tensor, 4), f"{name}.conv", 128, 1, spread=SPREAD)
    tensor = layers.relu(layers.dense(layers.flatten(tensor), f"{name}.fc1", 1024, spread=SPREAD))
    return layers.dense(layers.dropout(tensor, DROPOUT_OF_AUX), f"{name}.fc2", classes, spread=SPREAD)
