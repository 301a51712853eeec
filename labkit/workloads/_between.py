"""What workloads that only send between devices have in common."""

from __future__ import annotations

from labkit import ranks
from labkit.errors import Unsupported
from labkit.trial import Trial


def team_for_messages(trial: Trial) -> ranks.Team:
    """The team of a trial that sends `trial.size` bytes of FP32; Unsupported on one device, or below one number."""
    team = ranks.team()
    if team is None:
        raise Unsupported("what goes between devices takes two devices or more")
    if trial.size < 4:
        raise Unsupported(f"{trial.size} bytes are no FP32 number: a message has 4 bytes and more")
    return team
