"""One of several ranks, by the trial's size, cannot run the trial."""

from __future__ import annotations

from labkit import ranks
from labkit.errors import Unsupported
from labkit.trial import Trial
from tests.faulty.together import Together


def build(trial: Trial, data: object) -> Together:
    """Unsupported at one rank."""
    team = ranks.team()
    if team is not None and team.rank + 1 == trial.size:
        raise Unsupported("this rank's device has no such engine")
    return Together(trial)
