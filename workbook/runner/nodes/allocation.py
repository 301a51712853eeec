"""The nodes that a trial may run over: those of the Slurm job that this process is in, or this node alone.

The runner works on the first node. `start` runs the module `launcher` once on each node, which runs torchrun there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from workbook.runner.protocol import ADDRESS, NODE
from workbook.trials.trial import Trial

ON_EACH_NODE = [sys.executable, "-m", "workbook.runner.nodes.launcher"]


@dataclass(frozen=True)
class Nodes:
    """The nodes of this job. This node is the first of them. Further ones belong to this process's Slurm job."""

    count: int = 1

    def start(self, number: int, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start ON_EACH_NODE on the first `number` nodes and return the launcher's process.

        `environment` has the runner's port on this node (`:4711`). The launcher ends when the processes on all nodes
        have ended, and soon after the first failure. Killing the launcher's session ends them all. On several nodes it
        is a further step of the job, with one task per node and all of the node's resources.
        """
        command = step_of(number)
        if number == 1:
            command = ON_EACH_NODE
            environment = {**environment, NODE: "0", ADDRESS: f"127.0.0.1{environment[ADDRESS]}"}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def step_of(number: int) -> list[str]:
    """Return the srun command of a step on `number` nodes. Slurm tells each task the runner's address."""
    return [
        *("srun", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--relative=0"),
        # The step shares cores, memory and GPUs with the job's own step, which only waits. No task is bound to a core.
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        *("--kill-on-bad-exit=1", "--input=none", "--export=ALL"),
        *ON_EACH_NODE,
    ]


def nodes_here(environment: Mapping[str, str] = os.environ) -> Nodes:
    """Return the nodes of this Slurm job if this process is on the first of several; else this node alone."""
    number = environment.get("SLURM_JOB_NUM_NODES", "")
    first = environment.get("SLURM_NODEID") == "0" and "SLURMD_NODENAME" in environment
    if first and number.isdigit() and int(number) > 1 and shutil.which("srun"):
        return Nodes(int(number))
    return Nodes()


def too_few_nodes(trial: Trial, here: Nodes) -> str | None:
    """Return why there are too few nodes for a trial, and what to do; None if there are enough."""
    if trial.nodes <= here.count:
        return None
    return (
        f"the configuration runs on several nodes, and there {'is one' if here.count == 1 else f'are {here.count}'} of "
        f"{trial.nodes}: `make report ON=slurm HW=... NODES={trial.nodes}` runs the report as a Slurm job on enough "
        "nodes"
    )
