"""ResNet-50 in Keras, with torchvision's layers: the stride of a bottleneck is on its 3x3 convolution."""

from __future__ import annotations

from typing import Any

from workbook.engines.keras.networks.layers import Layers, Tensor

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of the 3x3 convolutions, blocks
EXPANSION = 4


def outputs(layers: Layers, images: Tensor, *, classes: int, **_: Any) -> Tensor:
    """Return the logits of `images`."""
    tensor = layers.convolution(images, "conv1", 64, 7, stride=2, padding=3)
    tensor = layers.relu(layers.norm(tensor, "bn1"))
    tensor = layers.max_pool(tensor, 3, stride=2, padding=1)
    for stage, (width, blocks) in enumerate(STAGES, start=1):
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
