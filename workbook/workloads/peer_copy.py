"""Copies between devices: each rank sends `trial.size` bytes to the next rank and receives as many from the previous.

All ranks send at once, as neighbours in a ring do. `bytes_per_step` counts the bytes that one device sends, so bytes/s
are the rate of one device in one direction.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit.data import DataSet
from workbook import ranks
from workbook.errors import GateError
from workbook.trials.trial import Trial
from workbook.workloads import Workload, all_reduce

RULES = all_reduce.RULES


def build(trial: Trial, data: DataSet | None) -> PeerCopyWorkload:
    """Return the peer copy workload of a trial."""
    team = ranks.team()
    assert team is not None
    return PeerCopyWorkload(trial, team)


class PeerCopyWorkload(Workload):
    """The message to the next rank, and the buffer for the message from the previous rank."""

    def __init__(self, trial: Trial, team: ranks.Team) -> None:
        self._team = team
        self._next, self._before = (team.rank + 1) % team.size, (team.rank - 1) % team.size
        self.message = torch.full((trial.size // 4,), float(team.rank), device=trial.device)
        self.received = torch.full_like(self.message, float("nan"))
        self.bytes_per_step = self.message.nbytes
        self.facts = {}

    def step(self) -> None:
        """Send and receive once, both at the same time."""
        work = self._team.work
        pair = [
            dist.P2POp(dist.isend, self.message, self._next, group=work),
            dist.P2POp(dist.irecv, self.received, self._before, group=work),
        ]
        for waiting in dist.batch_isend_irecv(pair):
            waiting.wait()

    def check(self) -> None:
        """Check that the received message equals the message of the previous rank."""
        self.step()
        if not bool((self.received == float(self._before)).all()):
            raise GateError(f"rank {self._team.rank} did not receive what rank {self._before} sent")
