"""The measured ceiling of the host: how many tiny operations a second PyTorch can queue.

A step queues `trial.size` operations on a tensor of one element. On a GPU each launches a kernel that is shorter than
its launch. On a CPU each is a dispatch of the same operator.
"""

from __future__ import annotations

import torch

from labkit.data import DataSet
from workbook.errors import GateError
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload

RULES = (
    Rule("never", lambda t: t.size < 1, "a step without operations has no launch rate: set size=3000, for example"),
)


def build(trial: Trial, data: DataSet | None) -> LaunchWorkload:
    """Return the launch rate workload of a trial."""
    return LaunchWorkload(trial)


class LaunchWorkload(Workload):
    """A tensor of one element, to which each operation adds one."""

    launches_per_step: int

    def __init__(self, trial: Trial) -> None:
        self.sum = torch.zeros(1, device=trial.device)
        self.launches_per_step = trial.size
        self.facts = {"threads": torch.get_num_threads()}

    def step(self) -> torch.Tensor:
        """Queue the operations one by one and return their tensor."""
        for _ in range(self.launches_per_step):
            self.sum.add_(1)
        return self.sum

    def check(self) -> None:
        """Check that a step's operations all ran. Raise GateError if the sum is not their number."""
        self.sum.zero_()
        self.step()
        if (added := float(self.sum)) != self.launches_per_step:
            raise GateError(f"{self.launches_per_step} operations added one, and their sum is {added:g}")
