"""The nodes that a trial may run over, and what starts a process on each: Slurm, inside an allocation, or nothing.

The runner works on the first node. On each node `labkit.run.node` is started, once, and becomes torchrun there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from labkit.records import Record
from labkit.run.protocol import ADDRESS, NODE
from labkit.trial import Trial

ON_EACH_NODE = [sys.executable, "-m", "labkit.run.node"]
TOO_FEW = "the trial runs on several nodes, and"


class Nodes(Protocol):
    """Nodes that are ours: this one, which is the first, and others."""

    @property
    def count(self) -> int:
        """How many they are."""
        ...

    def start(self, number: int, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start ON_EACH_NODE on the first so many, this one among them. The runner listens at a port (`:4711`) of it.

        The process ends when all have ended, soon after one has ended badly; killing its session ends all that is
        started here.
        """
        ...


@dataclass(frozen=True)
class ThisNode:
    """No node but this."""

    count: int = 1

    def start(self, number: int, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:  # noqa: ARG002
        """`number` is 1: `too_few_nodes` refuses every trial that takes more."""
        return _started(ON_EACH_NODE, {**environment, NODE: "0", ADDRESS: f"127.0.0.1{environment[ADDRESS]}"}, log)


@dataclass(frozen=True)
class SlurmNodes:
    """The nodes of the Slurm job that this process is a part of, on its first node."""

    count: int

    def start(self, number: int, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """A step of the job beside the one that this process is in: one task a node, with all that the node has."""
        return _started(step_of(number), environment, log)


def _started(command: list[str], environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
    )


def step_of(number: int) -> list[str]:
    """The command of such a step. Which address the runner has, Slurm tells each task."""
    return [
        *("srun", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--relative=0"),
        # The step shares cores, memory and GPUs with the job's own, which only waits; none of its tasks is tied to one.
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--kill-on-bad-exit=1", "--input=none", "--export=ALL"),
        *ON_EACH_NODE,
    ]


def nodes_here(environment: Mapping[str, str] = os.environ) -> Nodes:
    """The nodes of this job where this is the first of them; else this one alone."""
    number = environment.get("SLURM_JOB_NUM_NODES", "")
    first = environment.get("SLURM_NODEID") == "0" and "SLURMD_NODENAME" in environment
    if first and number.isdigit() and int(number) > 1 and shutil.which("srun"):
        return SlurmNodes(int(number))
    return ThisNode()


def too_few_nodes(trial: Trial, here: Nodes) -> str | None:
    """Why there are too few nodes for a trial, and what to do; None where there are enough."""
    if trial.nodes <= here.count:
        return None
    return (
        f"{TOO_FEW} there {'is one' if here.count == 1 else f'are {here.count}'} of {trial.nodes}: "
        f"`make report ON=slurm HW=... NODES={trial.nodes}` runs the report as a job on so many"
    )


def lacked_nodes(record: Record) -> bool:
    """Whether a trial was refused for want of nodes that are here now: it is tried again."""
    return (record.reason or "").startswith(TOO_FEW) and too_few_nodes(record.as_trial, nodes_here()) is None
