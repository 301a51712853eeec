"""Two jobs on the same devices: at once, each on half of the devices, or in turns on all devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from workbook import ranks
from workbook.trials.trial import Trial
from workbook.workloads import Workload

TURN = 16  # steps of the workload per turn


class TwoJobs(Workload):
    """Two similar trainings of separate networks: at once, each on half of the ranks, or in turns on all ranks.

    A step has the images of both jobs, so images/s are their sum. `make` builds one job from a trial of that job alone.
    """

    def __init__(self, trial: Trial, make: Callable[[Trial], Workload]) -> None:
        team = ranks.team()
        if trial.arrangement == "at_once":
            assert team is not None and team.half is not None, "at once takes two processes at least"
            # If half of the ranks is one rank, its process trains alone, without a team.
            self._team = team.half if team.half.size > 1 else None
            own = replace(trial, arrangement="alone", devices=team.half.size, seed=trial.seed + (team.half.first > 0))
            own_trials = [own]
        else:
            self._team = team
            own_trials = [replace(trial, arrangement="alone", seed=trial.seed + number) for number in range(2)]
        with ranks.working_as(self._team):
            self._jobs = [make(own_trial) for own_trial in own_trials]
        self._steps = 0
        first = self._jobs[0]
        self.images_per_step = 2 * own_trials[0].batch_of_step
        self.flop_per_step = 2 * first.flop_per_step if first.flop_per_step else None
        self.facts = {**self._facts(), "jobs": 2}

    def _facts(self) -> dict[str, Any]:
        """Return the facts of the first job. With two jobs in turns, a step sends the gradients of both."""
        facts = self._jobs[0].facts
        sent = facts.get("exchanged_bytes_per_step")
        return facts if sent is None else {**facts, "exchanged_bytes_per_step": sent * len(self._jobs)}

    def leave_out_gate(self) -> None:
        """Leave out each job's gate."""
        for job in self._jobs:
            job.leave_out_gate()

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the preparations of each job."""
        for job in self._jobs:
            for name, prepare in job.preparations():
                yield name, ranks.working_as(self._team)(prepare)

    def check(self) -> None:
        """Run each job's gate. Raise GateError if a job fails."""
        with ranks.working_as(self._team):
            for job in self._jobs:
                job.check()
        self.facts |= self._facts()

    def step(self) -> None:
        """Queue one step per job of this rank, all of the same job. The job changes every `TURN` calls.

        With a change after every step, each job would find the weights of the other job in the caches.
        """
        job = self._jobs[self._steps // TURN % len(self._jobs)]
        self._steps += 1
        for _ in self._jobs:
            job.step()

    def read_loss(self) -> float | None:
        """Return the mean loss since the last call, of this rank's first job that has made steps."""
        losses = [job.read_loss() for job in self._jobs if job.read_loss]  # read all jobs, so that none keeps losses
        return next((loss for loss in losses if loss is not None), None)
