"""One of several ranks runs out of memory."""

from __future__ import annotations

from labkit.trial import Trial
from tests.faulty.together import FailsAtOneRank


class Faulty(FailsAtOneRank):
    """Runs out of memory."""

    def fail_here(self) -> None:
        """As NumPy does."""
        raise MemoryError("no room for this layer")


def build(trial: Trial, data: object) -> Faulty:
    """The faulty steps."""
    return Faulty(trial)
