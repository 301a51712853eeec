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
        width, hidden = shape.width, shape.hidden
        self.heads = (shape.heads, KEY_HEADS, KEY_HEADS)
        self.before_attention, self.before_layers = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, sum(self.heads) * shape.head, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.gate_and_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(
        self, states: torch.Tensor, turn: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        heads = self.query_key_value(self.before_attention(states)).unflatten(-1, (sum(self.heads), -1))
        query, key, value = heads.transpose(1, 2).split(self.heads, dim=1)
        keys[:, :, PLACE] = turned(key, turn)[:, :, 0]
        values[:, :, PLACE] = value[:, :, 0]
        mixed = functional.scaled_dot_product_attention(
            turned(query, turn), keys, values, attn_mask=seen, enable_gqa=True
        )
        states = states + self.projection(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.gate_and_up(self.before_layers(states)).chunk(2, dim=-1)
        return states + self.down(functional.silu(gate) * up)


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
        self.register_buffer("seen", torch.arange(CONTEXT)[None] <= PLACE)

    def forward(self, tokens: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
        states = self.tokens(tokens)
        for block, *cache in zip(self.blocks, keys, values, strict=True):
            states = block(states, self.turn, *cache, self.seen)
        return functional.linear(self.norm(states), self.tokens.weight)


def build(shape: Shape = SMALL) -> nn.Module:
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a CPU draws 8 billion weights in a minute
        return Decoder(shape)


def batch(size: int, device: torch.device, shape: Shape = SMALL) -> dict:
    tokens = torch.randint(VOCABULARY, (size, 1), device=device)
    of_layer = (size, KEY_HEADS, CONTEXT, shape.head)
    keys, values = ([torch.randn(of_layer, device=device) for _ in range(shape.layers)] for _ in range(2))
    return {"tokens": tokens, "keys": keys, "values": values}


def predict(network: nn.Module, batch: dict) -> torch.Tensor:
    return network(**batch)
