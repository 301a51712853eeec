"""Idle workload: a process that holds the device without work, to measure the cost of holding it."""

from __future__ import annotations

import time

import torch

from labkit.data import DataSet
from workbook.errors import GateError
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload

STEP_S = 0.05

RULES: tuple[Rule, ...] = ()  # every device runs it


def build(trial: Trial, data: DataSet | None) -> IdleWorkload:
    """Return the idle workload of a trial."""
    return IdleWorkload(trial)


class IdleWorkload(Workload):
    """A device with a context (if the device has contexts) and no work."""

    def __init__(self, trial: Trial) -> None:
        self._held = torch.ones(1, device=trial.device)  # creates the context, which keeps clocks and power up
        self.facts = {}

    def step(self) -> None:
        """Sleep for `STEP_S` seconds."""
        time.sleep(STEP_S)

    def check(self) -> None:
        """Check that the device answers."""
        if float(self._held.sum()) != 1.0:
            raise GateError(f"the {self._held.device} device does not keep a number")
