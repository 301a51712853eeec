"""Batch norm for networks that have none, while they train: folded afterwards, the network is the plain one again.

VGGs and AlexNet do not leave chance in a dozen passes over 50,000 small images from a random start (seen at learning
rates of 0.01 and 0.02); with batch norm behind their convolutions they learn at once. Folding it into the convolutions
gives weights of the network without it, which predicts the same.
"""

from __future__ import annotations

from torch import nn

from labkit.engines.folding import fold_batch_norm


class Normalised(nn.Sequential):
    """A convolution and its batch norm, where the network has the convolution alone."""


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a network normalises by itself."""
    return any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def normalise(model: nn.Module) -> None:
    """Put batch norm behind every convolution, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, Normalised(child, nn.BatchNorm2d(child.out_channels)))


def fold_back(model: nn.Module) -> None:
    """Fold what `normalise` has put there, in place; the model is in evaluation mode with FP32 weights."""
    fold_batch_norm(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Normalised):
                setattr(module, name, child[0])
