"""Weaken the residual branches of a ResNet at its initial weights, which magnify rounding beyond any comparison."""

from __future__ import annotations

import torch
from torch import nn

DAMPING = 0.05


@torch.no_grad()
def damp(model: nn.Module, factor: float = DAMPING) -> None:
    """Scale the last normalisation of each residual branch, in place; a network without branches stays as it is."""
    for block in model.modules():
        if hasattr(block, "downsample"):
            last = block.bn3 if hasattr(block, "bn3") else block.bn2
            last.weight.mul_(factor)
