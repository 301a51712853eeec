"""Batch norm for networks without it, during training only: folded afterwards, it leaves the original network.

VGGs and AlexNet stay at chance for a dozen epochs over 50,000 small images from a random start (seen at learning rates
of 0.01 and 0.02). With batch norm after their convolutions they learn at once. Folding it into the convolutions gives
weights of the network without batch norm, which predicts the same.
"""

from __future__ import annotations

from torch import nn

from workbook.engines.folding import fold_batch_norm


class Normalised(nn.Sequential):
    """A convolution and its batch norm, in place of a network's convolution alone."""


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a network has batch norm."""
    return any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def normalise(model: nn.Module) -> None:
    """Put batch norm after every convolution, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, Normalised(child, nn.BatchNorm2d(child.out_channels)))


def fold_back(model: nn.Module) -> None:
    """Fold the batch norm that `normalise` added, in place. The model must be in evaluation mode with FP32 weights."""
    fold_batch_norm(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Normalised):
                setattr(module, name, child[0])
