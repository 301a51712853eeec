"""Weaken what magnifies rounding at a network's initial weights, so that two ways to compute one step can be compared.

Residual branches of a ResNet add up, and each magnifies the rounding of those before: their last normalisation is
scaled down. Chains of convolution, batch norm and ReLU (GoogLeNet, both Inceptions) magnify rounding too, since it
decides whether a value near zero is on or off, and torchvision begins them with weights so small that one step turns
them about: with noise of one part in ten million on the weights, three steps of GoogLeNet at 224 px differed by half of
their change, of Inception-v3 at 299 px by 0.8 of it. So their convolutions get He's spread, and most of their ReLUs
stay open: the same noise then makes 0.1 % and 0.8 %, and a missing ReLU still 24 % and 65 % (on a CPU, in FP32).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

DAMPING = 0.05
SCALE, SHIFT = 0.7, 1.0  # of the chains' batch norms: one value in thirteen lies below zero
_LAST_OF_BOTTLENECK = re.compile(r"layer\d+\.\d+\.bn3\.weight")
_CHAINED = re.compile(r"(?:.*\.)?(conv\.weight|bn\.weight|bn\.bias)")  # torchvision's BasicConv2d


def damp(model: nn.Module, factor: float = DAMPING) -> None:
    """Scale the last normalisation of each residual branch, in place; a network without branches stays as it is."""
    import torch

    with torch.no_grad():
        for block in model.modules():
            if hasattr(block, "downsample"):
                last = block.bn3 if hasattr(block, "bn3") else block.bn2
                last.weight.mul_(factor)


def calm(model: nn.Module, weights: Sequence[torch.Tensor]) -> None:
    """Weaken residual branches and chains of convolutions, in place, for steps that are compared and then undone.

    `weights` are the model's own as its optimiser sees them, in FP32 and in the order of its parameters: where the
    model computes with rounded ones, both follow.
    """
    import torch

    damp(model)
    with torch.no_grad():
        for (name, value), full in zip(model.named_parameters(), weights, strict=True):
            if _CHAINED.fullmatch(name):
                full.copy_(_of_chain(name, full))
                value.copy_(full)


def calmed(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The same of arrays under PyTorch's names, of networks whose branches have three convolutions."""
    return {
        name: value * value.dtype.type(DAMPING) if _LAST_OF_BOTTLENECK.fullmatch(name) else _of_chain(name, value)
        for name, value in weights.items()
    }


def _of_chain(name: str, value: Any) -> Any:
    """What a tensor or an array of a chain becomes; others as they are."""
    found = _CHAINED.fullmatch(name)
    if found is None:
        return value
    if found[1] == "conv.weight":
        he = math.sqrt(2 / math.prod(value.shape[1:]))  # He et al. 2015, arXiv:1502.01852
        return value * (he / float(value.std()))
    return value * 0 + (SCALE if found[1] == "bn.weight" else SHIFT)
