"""All-reduce, as gradients need it: every device gets the sum of `trial.size` bytes of FP32 over the trial's devices.

`bytes_per_step` counts the summed bytes, so bytes/s are the algorithm bandwidth of NCCL's tests. In a ring, each device
sends 2 (n - 1) / n times as many bytes (`wire_bytes_per_step`), which can be compared with the rate of a link.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.data import DataSet
from workbook import ranks
from workbook.errors import GateError
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload

RULES = (
    Rule("never", lambda t: t.devices == 1, "messages between devices need two devices or more"),
    Rule("never", lambda t: t.size < 4, "{size} bytes hold no FP32 number: a message needs at least 4 bytes"),
)


def build(trial: Trial, data: DataSet | None) -> AllReduceWorkload:
    """Return the all-reduce workload of a trial."""
    team = ranks.team()
    assert team is not None
    return AllReduceWorkload(trial, team)


class AllReduceWorkload(Workload):
    """A message of the same size on every rank."""

    def __init__(self, trial: Trial, team: ranks.Team) -> None:
        self._team = team
        self.message = torch.zeros(trial.size // 4, device=trial.device)
        self.bytes_per_step = self.message.nbytes
        self.facts = {"wire_bytes_per_step": 2 * self.message.nbytes * (team.size - 1) // team.size}

    def step(self) -> None:
        """Sum the message over all ranks in place."""
        dist.all_reduce(self.message, group=self._team.work)

    def check(self) -> None:
        """Check that every number is the sum of the ranks' numbers. Then set zeros, which stay zeros when summed."""
        places = torch.arange(self.message.numel(), device=self.message.device) % 1000  # numbers and sums exact in FP32
        self.message.copy_((self._team.rank + 1) * places)
        self.step()
        expected = places * (self._team.size * (self._team.size + 1) // 2)
        if not torch.equal(self.message, expected.float()):
            raise GateError("the sum over the devices is wrong")
        self.message.zero_()
