"""The clock of a trial that several processes run together: a block begins at all of them at once."""

from __future__ import annotations

from labkit.measure import Clock
from labkit.measure.clocks import Step
from labkit.ranks import Team


class TeamClock:
    """A clock around another. The leader announces each block; a follower is told of it before it calls."""

    def __init__(self, clock: Clock, team: Team) -> None:
        self._clock, self._team = clock, team

    def now_s(self) -> float:
        """Seconds on the monotonic clock."""
        return self._clock.now_s()

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Run `step` `steps` times at every rank: this rank's host and device seconds."""
        if self._team.leads:
            self._team.announce(steps)
        self._team.barrier()
        return self._clock.time_block(step, steps)
