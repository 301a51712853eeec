"""Batch norm folded into the convolution before it, and added to networks without it during training.

In inference, batch norm is a fixed scale and shift. VGGs and AlexNet stay at chance for a dozen epochs over 50,000
small images from a random start (seen at learning rates of 0.01 and 0.02). With batch norm after their convolutions
they learn at once. Folding it gives weights of the network without batch norm, which predicts the same.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval


@torch.no_grad()
def fold_batch_norm(model: nn.Module) -> int:
    """Fold each batch norm that stands after a convolution in its module, in place. Return how many were folded.

    The model must be in evaluation mode with FP32 weights. Modules count as neighbours in the order of definition: in
    torchvision's networks, a batch norm next to a convolution also follows it in the forward pass. Callers compare the
    outputs with those before.
    """
    folded = 0
    before: tuple[str, nn.Module] | None = None
    for name, child in list(model.named_children()):
        if isinstance(child, nn.BatchNorm2d) and before and isinstance(before[1], nn.Conv2d):
            setattr(model, before[0], fuse_conv_bn_eval(before[1], child))
            setattr(model, name, nn.Identity())
            folded += 1
        else:
            folded += fold_batch_norm(child)
        before = (name, child)
    return folded


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
