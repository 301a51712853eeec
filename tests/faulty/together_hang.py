"""One of several ranks hangs."""

from __future__ import annotations

import time

from labkit.trial import Trial
from tests.faulty.together import FailsAtOneRank


class Faulty(FailsAtOneRank):
    """Hangs."""

    def fail_here(self) -> None:
        """Longer than any limit."""
        time.sleep(600)


def build(trial: Trial, data: object) -> Faulty:
    """The faulty steps."""
    return Faulty(trial)
