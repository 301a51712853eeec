"""Ranks that don't wait for each other: the second takes twenty times as long for a step."""

from __future__ import annotations

import time

from labkit import ranks
from labkit.trial import Trial
from tests.faulty import Steps

SLOW_S = 0.02


class Unequal(Steps):
    """No step of a rank needs the other's."""

    def step(self) -> None:
        """Sleep."""
        super().step()
        team = ranks.team()
        if team is not None and not team.leads:
            time.sleep(SLOW_S)


def build(trial: Trial, data: object) -> Unequal:
    """Nothing goes wrong."""
    return Unequal(trial)
