"""Workloads that fail in every way a trial can, and one that does not. None imports torch unless it says so."""

from __future__ import annotations

import time
from typing import Any

from labkit.trial import Trial


class Steps:
    """A workload that sleeps a millisecond a step; `fail` is called in the third step, when blocks are being timed."""

    images_per_step: int | None = 4
    flop_per_step: int | None = None
    bytes_per_step: int | None = None
    read_loss = None
    fails_at = 3

    def __init__(self, trial: Trial) -> None:
        self.facts: dict[str, Any] = {"size": trial.size}
        self._steps = 0

    def check(self) -> None:
        """The gate passes."""
        self.step()

    def step(self) -> None:
        self._steps += 1
        time.sleep(0.001)
        if self._steps == self.fails_at:
            self.fail()

    def fail(self) -> None:
        """Nothing goes wrong."""
