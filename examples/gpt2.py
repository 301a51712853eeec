"""GPT-2 with 124 million parameters (Radford et al. 2019), trained on texts of 1,024 tokens.

The width is GPT-2's; the vocabulary is rounded up to a multiple of 64, as in nanoGPT.
"""

import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, VOCABULARY = 12, 12, 768, 50_304
tokens_per_sample = 1024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.before_attention(states)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.projection(mixed.transpose(1, 2).flatten(-2))
        return states + self.layers(self.before_layers(states))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(tokens_per_sample, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.blocks(self.tokens(tokens) + self.places(places))
        return functional.linear(self.norm(states), self.tokens.weight)  # the embedding is the last layer, too


def build() -> nn.Module:
    return GPT2()


def batch(size: int, device: torch.device) -> torch.Tensor:
    return torch.randint(VOCABULARY, (size, tokens_per_sample + 1), device=device)


def loss(network: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = network(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
