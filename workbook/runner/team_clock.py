"""The clock of a trial that several ranks run together: each block begins on all ranks at once."""

from __future__ import annotations

from labkit.timing import Clock
from labkit.timing.clocks import Step
from workbook.ranks import Team


class TeamClock:
    """A clock around a rank's own clock. The leader announces each block; followers hear of it before they call."""

    def __init__(self, clock: Clock, team: Team) -> None:
        self._clock, self._team = clock, team

    def now_s(self) -> float:
        """Return the seconds on the monotonic clock."""
        return self._clock.now_s()

    def time_block(self, step: Step, steps: int) -> tuple[float, float | None]:
        """Run `step` `steps` times on every rank. Return the slowest rank's host seconds and this device's seconds.

        The ranks begin together, so the longest of their times is the block's. Ranks of two jobs do not wait for each
        other.
        """
        if self._team.leads:
            self._team.announce(steps)
        self._team.barrier()
        host_s, device_s = self._clock.time_block(step, steps)
        return self._team.most(host_s), device_s
