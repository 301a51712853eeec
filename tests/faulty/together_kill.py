"""One of several ranks is killed."""

from __future__ import annotations

import os
import signal

from labkit.trial import Trial
from tests.faulty.together import FailsAtOneRank


class Faulty(FailsAtOneRank):
    """Is killed."""

    def fail_here(self) -> None:
        """As the kernel does."""
        os.kill(os.getpid(), signal.SIGKILL)


def build(trial: Trial, data: object) -> Faulty:
    """The faulty steps."""
    return Faulty(trial)
