"""Several ranks that add up numbers; where a rank is to fail, `size` is its number (1 to n, so rank 0 is 1)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from labkit import ranks
from labkit.errors import Unsupported
from labkit.run.protocol import NODE
from labkit.trial import Trial
from tests import faulty

SLOW_S = 0.02


class Together(faulty.Steps):
    """Each step ends when all ranks have taken it. In the third the rank that `size` names fails."""

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
        """Add up the ranks' numbers, 1 to n."""
        super().step()
        value = torch.tensor([self.rank + 1.0], device=self._device)
        if self._group is not None:
            dist.all_reduce(value, group=self._group)
        self.facts["sum"] = float(value)


def no_layer() -> None:
    raise ValueError("this rank has no such layer")


def no_room() -> None:
    raise MemoryError("no room for this layer")


build = Together
hang, kill, oom, raises = (partial(Together, fail=fail) for fail in (faulty.hang, faulty.kill, no_room, no_layer))


def unsupported(trial: Trial, data: object) -> Together:
    """One of the ranks cannot run the trial."""
    together = Together(trial)
    if together.rank + 1 == trial.size:
        raise Unsupported("this rank's device has no such engine")
    return together


def where(trial: Trial, data: object) -> Together:
    """Each rank says on which node it is."""
    together, team = Together(trial), ranks.team()
    assert team is not None
    together.facts["nodes"] = team.gather((os.environ[NODE], os.environ.get("SLURMD_NODENAME")))
    together.facts["interface"] = os.environ.get("GLOO_SOCKET_IFNAME")
    return together


class Unequal(faulty.Steps):
    """No step of a rank needs the other's, and the second rank takes twenty times as long."""

    def step(self) -> None:
        super().step()
        team = ranks.team()
        if team is not None and not team.leads:
            time.sleep(SLOW_S)
