"""Several processes that run one trial together: which of them this is, and what they say to each other beside it.

Rank 0 leads. It decides how many steps a block has, times it and keeps the result; the others hear of each block and do
the same steps. What is said goes over Gloo, so that it costs the devices nothing; `work` is the group that gradients
take: NCCL where each rank has a GPU. Nothing waits with a time limit: the runner watches over them and ends a group
that hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from labkit.errors import Unsupported

FOREVER = timedelta(days=7)


@dataclass(frozen=True)
class Team:
    """Ranks that work together, 0 to size - 1 among themselves; `first` is the number of their first in the world.

    `control` and `work` are process groups of torch.distributed. `half` is the half of them that this rank is in.
    """

    rank: int
    size: int
    control: Any
    work: Any
    first: int = 0
    half: Team | None = None

    @property
    def leads(self) -> bool:
        """Whether this process decides and times."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for all of the team."""
        import torch.distributed as dist

        dist.barrier(group=self.control)

    def announce(self, steps: int) -> None:
        """Say, as the leader, how many steps the next block has; 0 ends the trial."""
        self._broadcast(steps)

    def hear(self) -> int:
        """What the leader announces next."""
        return self._broadcast(0)

    def _broadcast(self, value: int) -> int:
        import torch
        import torch.distributed as dist

        number = torch.tensor([value], dtype=torch.int64)
        dist.broadcast(number, src=self.first, group=self.control)
        return int(number)

    def most(self, value: float) -> float:
        """The largest of the ranks' values, to all."""
        import torch
        import torch.distributed as dist

        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=self.control)
        return float(number)

    def gather(self, value: object) -> list[Any]:
        """One value of each rank, in their order, to all."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def agree(self, refused: str | None) -> None:
        """All say whether they can run the trial, or why not; Unsupported in all when one of them can't."""
        for reason in self.gather(refused):
            if reason is not None:
                raise Unsupported(str(reason))


class World:
    """All processes of a run, cut into teams of the first so many ranks: one for each of `sizes`.

    Those whose size is among `halved` are cut into two halves too. `backend` is what gradients go by.
    """

    def __init__(self, sizes: Iterable[int], *, backend: str, halved: Iterable[int] = ()) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", timeout=FOREVER)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._backend, cut = backend, set(halved)
        self._teams: dict[int, Team] = {}
        for size in sorted({one for one in sizes if 1 < one <= self.size}):  # every rank makes each group, in one order
            half = None
            if size in cut:
                halves = [self._make(first, size // 2) for first in (0, size // 2)]
                half = next((one for one in halves if one is not None), None)
            whole = self._make(0, size)
            if whole is not None:
                self._teams[size] = replace(whole, half=half)

    def _make(self, first: int, size: int) -> Team | None:
        """The team of so many ranks; None to a rank that is not among them."""
        import torch.distributed as dist

        members = list(range(first, first + size))
        control = dist.new_group(members, backend="gloo", timeout=FOREVER)
        work = dist.new_group(members, backend=self._backend, timeout=FOREVER)
        return Team(self.rank - first, size, control, work, first) if self.rank in members else None

    def wait_for_all(self) -> None:
        """Until every process has come here."""
        import torch.distributed as dist

        dist.barrier()

    def team_of(self, processes: int) -> Team | None:
        """This process's team for a trial of so many; None where it is one process or takes no part."""
        return self._teams.get(processes)


_present: Team | None = None


def team() -> Team | None:
    """The processes that run the present trial together; None where it is this one alone."""
    return _present


@contextmanager
def working_as(one: Team | None) -> Iterator[None]:
    """Run a trial as part of that team."""
    global _present
    before, _present = _present, one
    try:
        yield
    finally:
        _present = before
