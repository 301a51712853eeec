"""The measured ceiling of memory: copy `trial.size` bytes within the device's memory. Reads and writes both count."""

from __future__ import annotations

import torch

from labkit.data import DataSet
from workbook.errors import GateError
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload

RULES: tuple[Rule, ...] = ()  # every device runs it


def build(trial: Trial, data: DataSet | None) -> CopyWorkload:
    """Return the memory copy workload of a trial."""
    return CopyWorkload(trial)


class CopyWorkload(Workload):
    """A source far larger than any cache, and its destination."""

    def __init__(self, trial: Trial) -> None:
        torch.manual_seed(trial.seed)
        self.source = torch.randn(trial.size // 4, device=trial.device)
        self.target = torch.full_like(self.source, float("nan"))
        self.bytes_per_step = 2 * self.source.nbytes
        self.facts = {"threads": torch.get_num_threads()}

    def step(self) -> torch.Tensor:
        """Queue one copy and return its destination."""
        return self.target.copy_(self.source)

    def check(self) -> None:
        """Check that every element arrived."""
        self.step()
        if not torch.equal(self.source, self.target):
            raise GateError("the copy differs from its source")
