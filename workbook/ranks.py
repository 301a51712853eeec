"""Several processes that run one trial together: this process's rank, the control messages and the clock.

Rank 0 leads. It chooses how many steps a block has, times the block and keeps the result. The other ranks receive each
block's number of steps and run the same steps. Control messages go over Gloo, so they cost the devices nothing.
Gradients go over the group `work`, which uses NCCL if each rank has a GPU. Waits last
up to 7 days, because the runner watches the ranks and ends a group that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from labkit.timing.clocks import Clock, Step
from workbook.errors import Unsupported

FOREVER = timedelta(days=7)


@dataclass(frozen=True)
class Team:
    """Ranks 0 to size - 1 that work together. `first` is the world rank of the team's rank 0.

    `control` and `work` are process groups of torch.distributed. `half` is the half of the team with this rank.
    """

    rank: int
    size: int
    control: Any
    work: Any
    first: int = 0
    half: Team | None = None

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0, which chooses and times the blocks."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all ranks of the team."""
        import torch.distributed as dist

        dist.barrier(group=self.control)

    def announce(self, steps: int) -> None:
        """Send, as the leader, the number of steps of the next block to the team; 0 ends the trial."""
        self._broadcast(steps)

    def hear(self) -> int:
        """Return the number of steps that the leader announces next; 0 ends the trial."""
        return self._broadcast(0)

    def _broadcast(self, value: int) -> int:
        import torch
        import torch.distributed as dist

        number = torch.tensor([value], dtype=torch.int64)
        dist.broadcast(number, src=self.first, group=self.control)
        return int(number)

    def most(self, value: float) -> float:
        """Return the largest of the ranks' values, on every rank."""
        import torch
        import torch.distributed as dist

        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self.control)
        return float(number)

    def gather(self, value: object) -> list[Any]:
        """Return each rank's value, in the order of the ranks, on every rank."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def agree(self, refused: Unsupported | None) -> None:
        """Exchange between ranks whether each can run the trial. Raise Unsupported on every rank if any rank cannot."""
        for refusal in filter(None, self.gather(refused)):
            raise refusal


class World:
    """All processes of a run, with a team of the first ranks for each of `sizes`.

    Teams whose size is in `halved` are also divided into two halves. `backend` exchanges gradients.
    """

    def __init__(self, sizes: Iterable[int], *, backend: str, halved: Iterable[int] = ()) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=FOREVER)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._backend, cut = backend, set(halved)
        self._teams: dict[int, Team] = {}
        for size in sorted({n for n in sizes if 1 < n <= self.size}):  # all ranks make all groups, in the same order
            half = None
            if size in cut:
                halves = [self._make(first, size // 2) for first in (0, size // 2)]
                half = next((part for part in halves if part is not None), None)
            whole = self._make(0, size)
            if whole is not None:
                self._teams[size] = replace(whole, half=half)

    def _make(self, first: int, size: int) -> Team | None:
        """Return the team of `size` ranks from `first` on; None on a rank outside it. Every rank must call this."""
        import torch.distributed as dist

        members = list(range(first, first + size))
        control = dist.new_group(members, backend="gloo", timeout=FOREVER)
        work = dist.new_group(members, backend=self._backend, timeout=FOREVER)
        return Team(self.rank - first, size, control, work, first) if self.rank in members else None

    def wait_for_all(self) -> None:
        """Wait until every process calls this."""
        import torch.distributed as dist

        dist.barrier()

    def team_of(self, processes: int) -> Team | None:
        """Return this process's team for a trial of `processes`; None for one process or a rank that takes no part."""
        return self._teams.get(processes)


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


_present: Team | None = None


def team() -> Team | None:
    """Return the team that runs the present trial; None if this process runs it alone or takes no part."""
    return _present


@contextmanager
def working_as(members: Team | None) -> Iterator[None]:
    """Make `members` the present team within the context."""
    global _present
    before, _present = _present, members
    try:
        yield
    finally:
        _present = before
