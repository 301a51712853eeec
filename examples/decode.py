"""A decode step of a network shaped like Llama 3.2 1B, with random weights and a static cache of keys and values.

One step makes the next token of each text of the batch. Speed does not depend on the weights.
"""

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, KEY_HEADS, HEAD, HIDDEN, VOCABULARY = 16, 2048, 32, 8, 64, 8192, 128_256
CONTEXT, PLACE = 2048, 1024  # length of the cache, and the place of the token that a step makes
tokens_per_sample = 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False) for _ in range(2))
        self.projection = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(
        self, states: torch.Tensor, turn: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        normed = self.before_attention(states)
        query = turned(self.query(normed).unflatten(-1, (HEADS, HEAD)).transpose(1, 2), turn)
        keys[:, :, PLACE] = turned(self.key(normed).unflatten(-1, (KEY_HEADS, HEAD)).transpose(1, 2), turn)[:, :, 0]
        values[:, :, PLACE] = self.value(normed).unflatten(-1, (KEY_HEADS, HEAD)).transpose(1, 2)[:, :, 0]
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
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        angles = PLACE * 500_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        self.register_buffer("turn", torch.stack([angles.cos(), angles.sin()]))

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        states = self.tokens(tokens)
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            states = block(states, self.turn, keys, values)
        return functional.linear(self.norm(states), self.tokens.weight)


def build() -> nn.Module:
    return Decoder()


def batch(size: int, device: torch.device) -> dict[str, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (size, 1), device=device)
    return {"tokens": tokens, "cache": torch.randn(LAYERS, 2, size, KEY_HEADS, CONTEXT, HEAD, device=device)}


def predict(network: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return network(batch["tokens"], batch["cache"])
