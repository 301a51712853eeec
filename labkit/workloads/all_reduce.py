"""What gradients take: the sum of `trial.size` bytes of FP32 over the trial's devices, at each of them.

`bytes_per_step` counts the bytes that are summed, so bytes/s are what NCCL's tests call the algorithm's bandwidth. What
each device sends is 2 (n - 1) / n times as much (`wire_bytes_per_step`, in a ring): what a link can be held to.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit import ranks
from labkit.data import DataSet
from labkit.errors import GateError, Unsupported
from labkit.trial import Trial
from labkit.workloads import Workload


def team_for_messages(trial: Trial) -> ranks.Team:
    """The team of a trial that sends `trial.size` bytes of FP32; Unsupported on one device, or below one number."""
    team = ranks.team()
    if team is None:
        raise Unsupported("what goes between devices takes two devices or more")
    if trial.size < 4:
        raise Unsupported(f"{trial.size} bytes are no FP32 number: a message has 4 bytes and more")
    return team


def build(trial: Trial, data: DataSet | None) -> AllReduceWorkload:
    """The sum of a trial; Unsupported as `team_for_messages`."""
    return AllReduceWorkload(trial, team_for_messages(trial))


class AllReduceWorkload(Workload):
    """A message that lies at every rank."""

    def __init__(self, trial: Trial, team: ranks.Team) -> None:
        self._team = team
        self.message = torch.zeros(trial.size // 4, device=trial.device)
        self.bytes_per_step = self.message.nbytes
        self.facts = {"wire_bytes_per_step": 2 * self.message.nbytes * (team.size - 1) // team.size}

    def step(self) -> None:
        """One sum, in place."""
        dist.all_reduce(self.message, group=self._team.work)

    def check(self) -> None:
        """Every number is the sum of the ranks' numbers; from then on zeros are summed, which stay zeros."""
        places = torch.arange(self.message.numel(), device=self.message.device) % 1000  # exact in FP32, summed too
        self.message.copy_((self._team.rank + 1) * places)
        self.step()
        expected = places * (self._team.size * (self._team.size + 1) // 2)
        if not torch.equal(self.message, expected.float()):
            raise GateError("the sum over the devices is wrong")
        self.message.zero_()
