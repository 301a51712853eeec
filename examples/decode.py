"""A decode step of a network shaped like Llama 3.2 1B, with random weights and a static cache of keys and values.

One step makes the next token of each text of the batch. Speed does not depend on the weights.
"""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, KEY_HEADS = 128_256, 8
CONTEXT, PLACE = 2048, 1024  # length of the cache, and the place of the token that a step makes
tokens_per_sample = 1


class Shape(NamedTuple):
    layers: int = 16
    width: int = 2048
    heads: int = 32
    hidden: int = 8192

    @property
    def head(self) -> int:
        return self.width // self.heads


SMALL = Shape()


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden, keys = shape.width, shape.hidden, KEY_HEADS * shape.head
        self.heads = (shape.heads, KEY_HEADS)
        self.before_attention, self.before_layers = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.projection = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, states: torch.Tensor, turn: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        normed = self.before_attention(states)
        heads, key_heads = self.heads
        query = turned(self.query(normed).unflatten(-1, (heads, -1)).transpose(1, 2), turn)
        keys[:, :, PLACE] = turned(self.key(normed).unflatten(-1, (key_heads, -1)).transpose(1, 2), turn)[:, :, 0]
        values[:, :, PLACE] = self.value(normed).unflatten(-1, (key_heads, -1)).transpose(1, 2)[:, :, 0]
        seen = slice(0, PLACE + 1)
        mixed = functional.scaled_dot_product_attention(query, keys[:, :, seen], values[:, :, seen], enable_gqa=True)
        states = states + self.projection(mixed.transpose(1, 2).flatten(-2))
        normed = self.before_layers(states)
        return states + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def turned(heads: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Return heads with rotary positions; `turn` has the cosines and sines."""
    first, second = heads.chunk(2, dim=-1)
    cosine, sine = turn
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        angles = PLACE * 500_000.0 ** (-torch.arange(0, shape.head, 2) / shape.head)
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]))

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        states = self.tokens(tokens)
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            states = block(states, self.turn, keys, values)
        return functional.linear(self.norm(states), self.tokens.weight)


def build(shape: Shape = SMALL) -> nn.Module:
    return Decoder(shape)


def batch(size: int, device: torch.device, shape: Shape = SMALL) -> dict[str, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (size, 1), device=device)
    cache = torch.randn(shape.layers, 2, size, KEY_HEADS, CONTEXT, shape.head, device=device)
    return {"tokens": tokens, "cache": cache}


def predict(network: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return network(batch["tokens"], batch["cache"])
