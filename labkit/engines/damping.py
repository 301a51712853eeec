"""Weaken the residual branches of a ResNet at its initial weights, which magnify rounding beyond any comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

DAMPING = 0.05
_LAST_OF_BOTTLENECK = re.compile(r"layer\d+\.\d+\.bn3\.weight")


def damp(model: nn.Module, factor: float = DAMPING) -> None:
    """Scale the last normalisation of each residual branch, in place; a network without branches stays as it is."""
    import torch

    with torch.no_grad():
        for block in model.modules():
            if hasattr(block, "downsample"):
                last = block.bn3 if hasattr(block, "bn3") else block.bn2
                last.weight.mul_(factor)


def damped(weights: Mapping[str, Any], factor: float = DAMPING) -> dict[str, Any]:
    """The same of arrays under PyTorch's names, of networks whose branches have three convolutions."""
    return {
        name: value * value.dtype.type(factor) if _LAST_OF_BOTTLENECK.fullmatch(name) else value
        for name, value in weights.items()
    }
