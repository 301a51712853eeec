"""One of several ranks raises."""

from __future__ import annotations

from labkit.trial import Trial
from tests.faulty.together import FailsAtOneRank


class Faulty(FailsAtOneRank):
    """Raises."""

    def fail_here(self) -> None:
        """As a network does."""
        raise ValueError("this rank has no such layer")


def build(trial: Trial, data: object) -> Faulty:
    """The faulty steps."""
    return Faulty(trial)
