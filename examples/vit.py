"""torchvision's ViT-B/16 with AdamW, as its paper trains it."""

import torch
from torch import nn
from torch.nn import functional

import labkit

EDGE_PX, CLASSES = 224, 1000


def build() -> nn.Module:
    return labkit.build("vit_b_16", image_px=EDGE_PX, classes=CLASSES)


def batch(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(size, 3, EDGE_PX, EDGE_PX, device=device)
    return images, torch.randint(CLASSES, (size,), device=device)


def loss(network: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return functional.cross_entropy(network(images).float(), labels)


def predict(network: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return network(batch[0])


def optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1)
