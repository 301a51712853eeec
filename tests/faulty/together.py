"""Workloads of several ranks that sum numbers. `size` of a trial is the number of the failing rank plus 1."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tests import faulty
from workbook import ranks
from workbook.errors import Unsupported
from workbook.trials.trial import Trial

SLOW_S = 0.02


class Together(faulty.Steps):
    """A workload whose steps end when all ranks have taken them. The rank `size` - 1 calls `fail` in the third step."""

    def __init__(self, trial: Trial, data: object = None, *, fail: Callable[[], object] = lambda: None) -> None:
        super().__init__(trial)
        team = ranks.team()
        self.rank, self.size = (team.rank, team.size) if team else (0, 1)
        if self.rank + 1 == trial.size:
            self.fail = fail
        self._group = team.work if team else None
        self._device = trial.device
        self.facts: dict[str, Any] = {"ranks": self.size, "sum": None, "threads": torch.get_num_threads()}

    def step(self) -> None:
        """Sum the numbers 1 to n over n ranks and store the sum in the facts."""
        super().step()
        value = torch.tensor([self.rank + 1.0], device=self._device)
        if self._group is not None:
            dist.all_reduce(value, group=self._group)
        self.facts["sum"] = float(value)


def no_layer() -> None:
    raise ValueError("this rank has no such layer")


def no_room() -> None:
    raise torch.OutOfMemoryError("no room for this layer")


build = Together
hang, kill, oom, raises = (partial(Together, fail=fail) for fail in (faulty.hang, faulty.kill, no_room, no_layer))


def unsupported(trial: Trial, data: object) -> Together:
    """Return the workload, or raise Unsupported on the rank that `size` names."""
    together = Together(trial)
    if together.rank + 1 == trial.size:
        raise Unsupported("this rank's device has no such engine")
    return together


def where(trial: Trial, data: object) -> Together:
    """Return a workload whose facts list the node of each rank and the interface that Gloo uses."""
    together, team = Together(trial), ranks.team()
    assert team is not None
    together.facts["nodes"] = team.gather((os.environ["GROUP_RANK"], os.environ.get("SLURMD_NODENAME")))
    together.facts["interface"] = os.environ.get("GLOO_SOCKET_IFNAME")
    return together


class Unequal(faulty.Steps):
    """A workload whose ranks step independently. Ranks after the first take twenty times as long per step."""

    def step(self) -> None:
        super().step()
        team = ranks.team()
        if team is not None and not team.leads:
            time.sleep(SLOW_S)
