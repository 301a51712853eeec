"""A small CNN: the least that a file needs to be measured in training and in prediction."""

import torch
from torch import nn
from torch.nn import functional


def build() -> nn.Module:
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(32 * 8 * 8, 10))


def batch(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 3, 32, 32, device=device), torch.randint(10, (size,), device=device)


def loss(network: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return functional.cross_entropy(network(images), labels)


def predict(network: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return network(batch[0])
