"""Inception-BN for PyTorch, from its paper (Ioffe & Szegedy 2015, arXiv:1502.03167, figure 5): no library has it.

Details that the paper leaves open follow torchvision's GoogLeNet: module names, the block of convolution, batch norm
(eps 0.001) and ReLU, stem pooling that includes the last, incomplete window, and the initialisation. Average pooling
counts the padding, as in torchvision's Inception-v3 and in MXNet.
"""

from __future__ import annotations

import torch
from torch import nn

from labkit.models.inception_bn_table import ROWS, STEM, Row
from labkit.torchvision_import import import_torchvision


class InceptionBN(nn.Module):
    """Network from images (N, 3, 224, 224) or (N, 3, 32, 32) to logits (N, classes). Other edges work as well."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        first, reduced, channels = STEM
        self.conv1 = _block(3, first, kernel_size=7, stride=2, padding=3)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.conv2 = _block(first, reduced, kernel_size=1)
        self.conv3 = _block(reduced, channels, kernel_size=3, padding=1)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        for row in ROWS:
            self.add_module(f"inception{row.name}", InceptionModule(channels, row))
            channels = row.channels(channels)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(module.weight, std=0.01, a=-2, b=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images."""
        features = self.maxpool1(self.conv1(images))
        features = self.maxpool2(self.conv3(self.conv2(features)))
        for row in ROWS:
            features = self.get_submodule(f"inception{row.name}")(features)
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(features), 1))
        return logits


class InceptionModule(nn.Module):
    """One row of the table: 1x1, 3x3, double 3x3 and pooled branches, concatenated in this order."""

    def __init__(self, channels: int, row: Row) -> None:
        super().__init__()
        stride = row.stride
        self.branch1 = _block(channels, row.one, kernel_size=1) if row.one else None
        self.branch2 = nn.Sequential(
            _block(channels, row.reduce, kernel_size=1),
            _block(row.reduce, row.three, kernel_size=3, stride=stride, padding=1),
        )
        self.branch3 = nn.Sequential(
            _block(channels, row.double_reduce, kernel_size=1),
            _block(row.double_reduce, row.double, kernel_size=3, padding=1),
            _block(row.double, row.double, kernel_size=3, stride=stride, padding=1),
        )
        pool = nn.AvgPool2d if row.pool == "average" else nn.MaxPool2d
        self.branch4 = nn.Sequential(pool(3, stride=stride, padding=1))
        if row.project:
            self.branch4.append(_block(channels, row.project, kernel_size=1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features (N, C', H / stride, W / stride) made from features (N, C, H, W)."""
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(features) for branch in branches if branch is not None], dim=1)


def _block(channels: int, filters: int, **window: int) -> nn.Module:
    """Return a convolution without bias, batch norm and ReLU, as in torchvision's GoogLeNet."""
    import_torchvision()
    from torchvision.models.googlenet import BasicConv2d

    block: nn.Module = BasicConv2d(channels, filters, **window)
    return block
