"""VGG-16 in Keras, with torchvision's layers, without batch norm."""

from __future__ import annotations

from typing import Any

from workbook.engines.keras.networks.layers import Layers, Tensor

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters, convolutions before each pooling
DROPOUT = 0.5


def outputs(layers: Layers, images: Tensor, *, classes: int, head: str, **_: Any) -> Tensor:
    """Return the logits of `images`. torchvision's head replicates 1x1 features to 7x7; `head512` takes them 1x1."""
    tensor, place = images, 0  # the index of a layer in PyTorch's `features`
    for filters, convolutions in STAGES:
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
        tensor = layers.dropout(layers.relu(layers.dense(tensor, name, units, **initial)), DROPOUT)
    return layers.dense(tensor, "classifier.6", classes, **initial)
