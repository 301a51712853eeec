"""Several ranks that add up numbers; where a rank is to fail, `size` is its number (1 to n, so rank 0 is 1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from labkit import ranks
from labkit.trial import Trial
from tests.faulty import Steps


class Together(Steps):
    """Each step ends when all ranks have taken it."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        team = ranks.team()
        self.rank, self.size = (team.rank, team.size) if team else (0, 1)
        self._group = team.work if team else None
        self._device = trial.device
        self.facts: dict[str, Any] = {"ranks": self.size, "sum": None, "threads": torch.get_num_threads()}

    def step(self) -> None:
        """Add up the ranks' numbers, 1 to n."""
        super().step()
        value = torch.tensor([self.rank + 1.0], device=self._device)
        if self._group is not None:
            dist.all_reduce(value, group=self._group)
        self.facts["sum"] = float(value)


class FailsAtOneRank(Together):
    """One rank, which the trial's size names, fails in its third step while the others wait for it."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self.facts["size"] = trial.size

    def fail(self) -> None:
        """Only there."""
        if self.rank + 1 == self.facts["size"]:
            self.fail_here()

    def fail_here(self) -> None:
        """How it fails."""


def build(trial: Trial, data: object) -> Together:
    """Nothing goes wrong."""
    return Together(trial)
