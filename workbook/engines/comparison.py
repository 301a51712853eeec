"""What two ways to compute a step are compared with: tolerances, and weights that do not magnify rounding.

Rounding is magnified at a network's initial weights. Residual branches of a ResNet add up, and each branch magnifies
the rounding of those before: their last normalisation is scaled down. Chains of convolution, batch norm and ReLU
(GoogLeNet, both Inceptions) magnify rounding too, since rounding decides whether a value near zero is on or off.
torchvision initialises them so small that one step turns them about. With noise of one part in ten million on the
weights, three steps of GoogLeNet at 224 px differed by half of their change. At 299 px, those of Inception-v3 differed
by 0.8 of it. So their convolutions get He's spread, and most ReLUs stay open. The same noise then makes 0.1 % and
0.8 %, and a missing ReLU still 24 % and 65 % (on a CPU, in FP32).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbook.errors import GateError

if TYPE_CHECKING:
    import torch
    from torch import nn


Difference = tuple[str, float, float]  # its name, its size, and its tolerance


def check(said: str, difference: float, tolerance: float, unit: str) -> None:
    """Raise GateError if a difference, in parts of `unit`, exceeds its tolerance or is NaN."""
    if not difference <= tolerance:
        raise GateError(f"{said} by {difference:.2g} of {unit}, more than {tolerance:.3g}")


def checked(said: str, differences: Mapping[str, Difference], unit: str) -> dict[str, float]:
    """Return `<name>_difference` and `<name>_tolerance` of each. Raise GateError for the first beyond its tolerance."""
    facts: dict[str, float] = {}
    for name, (what, difference, tolerance) in differences.items():
        check(said.format(what), difference, tolerance, unit)
        facts |= {f"{name}_difference": difference, f"{name}_tolerance": tolerance}
    return facts


DAMPING = 0.05
SCALE, SHIFT = 0.7, 1.0  # of the chains' batch norms: one value in thirteen is then below zero
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


def weaken(model: nn.Module, weights: Sequence[torch.Tensor]) -> None:
    """Weaken residual branches and chains of convolutions, in place, for steps that are compared and then undone.

    `weights` are the model's weights as its optimiser holds them, in FP32 and in the order of its parameters. If the
    model computes with rounded weights, both are changed.
    """
    import torch

    damp(model)
    with torch.no_grad():
        for (name, value), full in zip(model.named_parameters(), weights, strict=True):
            if _CHAINED.fullmatch(name):
                full.copy_(_of_chain(name, full))
                value.copy_(full)


def weakened(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return `weights` (arrays by PyTorch's names), weakened as by `weaken`; branches must have three convolutions."""
    return {
        name: value * value.dtype.type(DAMPING) if _LAST_OF_BOTTLENECK.fullmatch(name) else _of_chain(name, value)
        for name, value in weights.items()
    }


def _of_chain(name: str, value: Any) -> Any:
    """Return the weakened value of a chain's tensor or array; return any other as it is."""
    match = _CHAINED.fullmatch(name)
    if match is None:
        return value
    if match[1] == "conv.weight":
        he = math.sqrt(2 / math.prod(value.shape[1:]))  # He et al. 2015, arXiv:1502.01852
        return value * (he / float(value.std()))
    return value * 0 + (SCALE if match[1] == "bn.weight" else SHIFT)
