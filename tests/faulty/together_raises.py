"""One of several ranks, by the trial's size, fails in its third step while the others wait for it."""

from __future__ import annotations

from labkit.trial import Trial
from tests.faulty.together import Together


class Faulty(Together):
    """Fails at one rank."""

    def fail(self) -> None:
        """Only at the rank that the trial names."""
        if self.rank + 1 == self.facts["size"]:
            raise ValueError("this rank has no such layer")


def build(trial: Trial, data: object) -> Faulty:
    """The faulty steps."""
    faulty = Faulty(trial)
    faulty.facts["size"] = trial.size
    return faulty
