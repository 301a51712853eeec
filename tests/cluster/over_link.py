"""A training over two linked hosts that sends many gradients, while the link's rate changes with each block.

`python -m tests.cluster.over_link REPORT COMMAND` measures the training on the first host. COMMAND, a JSON list, is the
prefix of each command for the second host.

The network looks up a few words in large tables. A step reads some thousands of its 60 million parameters, but
DistributedDataParallel sends the gradients of all parameters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.cluster.link import ADDRESSES, shaper
from tests.faulty.campaign import HOST, STUDY
from tests.several_nodes import Beside
from workbook import ranks
from workbook.engines.exchange.averaging import check_same_everywhere, overlapped
from workbook.hardware.profile import Device, Profile, Timing
from workbook.records.store import Store
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.trial import Trial

RATES_BITS_PER_S = (2e9, 1e9, 0.5e9)
TABLES, WORDS, FEATURES, CLASSES = 6, 10_000, 1_000, 46


class Tables(nn.Module):
    """A network that sums each table's embeddings of a batch of words and returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(WORDS, FEATURES) for _ in range(TABLES))
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([table(words) for table in self.tables]).sum(0))


class OverLink:
    """A training workload that changes its link's rate: each rank calls `read_loss`, untimed, between blocks.

    Each call appends a number to two facts. `rates_bits_per_s` holds the rate of the next block. `sent_bytes` holds
    the bytes sent so far, including packet headers.
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
        """Take a step on different words per rank, and check that all ranks then have the same weights."""
        self.step()
        check_same_everywhere(list(self._network.parameters()), self._team)

    def step(self) -> None:
        words, labels = torch.randint(WORDS, (self._batch,)), torch.randint(CLASSES, (self._batch,))
        self._optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(self._parallel(words), labels).backward()
        self._optimizer.step()

    def read_loss(self) -> float | None:
        interface, rates = os.environ["GLOO_SOCKET_IFNAME"], self.facts["rates_bits_per_s"]
        shown = subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", interface], check=True, capture_output=True)
        self.facts["sent_bytes"] += [queue["bytes"] for queue in json.loads(shown.stdout) if queue.get("root")]
        rates.append(RATES_BITS_PER_S[len(rates) % len(RATES_BITS_PER_S)])
        subprocess.run(["tc", "qdisc", "change", "dev", interface, *shaper(rates[-1])], check=True)
        return None


def build(trial: Trial, data: object) -> OverLink:
    """Return the workload of a trial."""
    return OverLink(trial)


def main(report: Path, there: list[str]) -> None:
    about = {"batch": 8, "device": "cpu", "threads": 1, "devices": 2, "nodes": 2, "network": "ethernet", "data": "none"}
    trial = Trial(workload="tests.cluster.over_link", model="tables", **about)  # type: ignore[arg-type]
    timing = Timing(warmup_s=0.5, timed_s=40.0, block_s=0.005, limit_s=280.0, passes=1)
    profile = Profile(name="cpu", title="a CPU", device=Device(kind="cpu"), timing={"smoke": timing})
    nodes = Beside(before=((), tuple(there)), address=ADDRESSES[0])
    measure(
        [trial],
        study=STUDY,
        session=Session(scale="smoke", profile=profile, host=HOST, store=Store(report)),
        nodes=nodes,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
