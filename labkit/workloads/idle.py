"""Doing nothing: a process that holds the device and gives it no work, to measure what that costs."""

from __future__ import annotations

import time

import torch

from labkit.data import DataSet
from labkit.errors import GateError
from labkit.trial import Trial
from labkit.workloads import Workload

STEP_S = 0.05


def build(trial: Trial, data: DataSet | None) -> IdleWorkload:
    """The idle workload of a trial."""
    return IdleWorkload(trial)


class IdleWorkload(Workload):
    """A device with a context on it (where it has such a thing) and nothing to do."""

    def __init__(self, trial: Trial) -> None:
        self._held = torch.ones(1, device=trial.device)  # creates the context, which keeps clocks and power up
        self.facts = {}

    def step(self) -> None:
        """Sleep."""
        time.sleep(STEP_S)

    def check(self) -> None:
        """The device answers."""
        if float(self._held.sum()) != 1.0:
            raise GateError(f"the {self._held.device} device does not keep a number")
