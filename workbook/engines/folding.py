"""Fold batch norm into the convolution before it: in inference, batch norm is a fixed scale and shift."""

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
