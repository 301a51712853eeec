"""A decode step of a network shaped like Llama 3.1 8B, with random weights: see `decode.py`."""

import decode
import torch
from decode import predict, tokens_per_sample
from torch import nn

SHAPE = decode.Shape(layers=32, width=4096, heads=32, hidden=14_336)
__all__ = ["batch", "build", "predict", "tokens_per_sample"]


def build() -> nn.Module:
    return decode.build(SHAPE)


def batch(size: int, device: torch.device) -> dict[str, torch.Tensor]:
    return decode.batch(size, device, SHAPE)
