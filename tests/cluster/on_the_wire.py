"""Training that has little to do but to exchange gradients, over a link whose rate changes with each block.

The network looks a few words up in large tables: of 60 million parameters a step reads some thousand, but gradients are
as many as parameters, and DistributedDataParallel sends them all.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from labkit import ranks
from labkit.engines.exchange import check_same_everywhere, overlapped
from labkit.trial import Trial
from tests.cluster.link import SHAPER

RATES_BITS_PER_S = (2e9, 1e9, 0.5e9)
TABLES, WORDS, FEATURES, CLASSES = 6, 10_000, 1_000, 46


class Tables(nn.Module):
    """Logits of batches of words: the sum of what each table says of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(WORDS, FEATURES) for _ in range(TABLES))
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([table(words) for table in self.tables]).sum(0))


class OnTheWire:
    """`read_loss` is called between blocks, by each rank, and is not timed: each shapes what it sends in the next.

    `rates_bits_per_s` and `sent_bytes` of the facts have one number a call: the rate of the block to come, and the
    bytes so far.
    """

    flop_per_step: int | None = None
    bytes_per_step: int | None = None

    def __init__(self, trial: Trial) -> None:
        team = ranks.team()
        assert team is not None
        torch.manual_seed(trial.seed)
        self.images_per_step: int | None = trial.batch_of_step
        self._team, self._batch, self._network = team, trial.batch_of_device, Tables()
        self._parallel = overlapped(self._network, team)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.1)
        gradients = sum(4 * weight.numel() for weight in self._network.parameters())
        self.facts: dict[str, Any] = {"gradient_bytes": gradients, "rates_bits_per_s": [], "sent_bytes": []}

    def check(self) -> None:
        """After a step on words that differ all ranks have the same weights."""
        self.step()
        check_same_everywhere(list(self._network.parameters()), self._team)

    def step(self) -> None:
        words, labels = torch.randint(WORDS, (self._batch,)), torch.randint(CLASSES, (self._batch,))
        self._optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(self._parallel(words), labels).backward()
        self._optimizer.step()

    def read_loss(self) -> float | None:
        interface, rates = os.environ["GLOO_SOCKET_IFNAME"], self.facts["rates_bits_per_s"]
        self.facts["sent_bytes"].append(sent_bytes(interface))
        rates.append(RATES_BITS_PER_S[len(rates) % len(RATES_BITS_PER_S)])
        shaped = ("root", "tbf", "rate", f"{rates[-1]:.0f}bit", *SHAPER)
        subprocess.run(["tc", "qdisc", "change", "dev", interface, *shaped], check=True)
        return None


def sent_bytes(interface: str) -> int:
    """As the shaper counts them: with the headers of every packet."""
    told = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", interface], check=True, capture_output=True, text=True
    )
    return int(next(one["bytes"] for one in json.loads(told.stdout) if one.get("root")))


def build(trial: Trial, data: object) -> OnTheWire:
    """The training of a trial."""
    return OnTheWire(trial)
