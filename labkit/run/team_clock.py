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
        """Run `step` `steps` times at every rank: host seconds until the last of them is done, this device's seconds.

        They begin together, so that the longest of their times is the block's: ranks of two jobs don't wait for each
        other.
        """
        if self._team.leads:
            self._team.announce(steps)
        self._team.barrier()
        host_s, device_s = self._clock.time_block(step, steps)
        return self._team.most(host_s), device_s
