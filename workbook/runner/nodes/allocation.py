"""The nodes that a trial may run over: those of the Slurm job that this process is in, or this node alone.

The runner works on the first node.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from workbook.trials.trial import Trial

ON_EACH_NODE = [sys.executable, "-m", "workbook.runner.nodes.launcher"]


@dataclass(frozen=True)
class Nodes:
    """The nodes of this job. This node is the first of them. Further ones belong to this process's Slurm job."""

    count: int = 1

    def command(self, number: int, ranks: int) -> list[str]:
        """Return the command that runs `ranks` ranks on the first `number` nodes.

        On several nodes it is a further step of the job, with one task per node and all of the node's resources. The
        first task reads stdin; killing the command ends all tasks.
        """
        if number == 1:
            return [*ON_EACH_NODE, "1", "0", str(ranks)]
        with socket.create_server(("", 0)) as unused:
            port = unused.getsockname()[1]
        return self.on_each(number, [*ON_EACH_NODE, str(number), str(port), str(ranks // number)])

    def on_each(self, number: int, command: list[str]) -> list[str]:
        """Return the srun command of a step that runs `command` on the first `number` nodes."""
        return [
            *("srun", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--relative=0"),
            # The step shares cores, memory and GPUs with the job's own step, which only waits. No task is bound to a
            # core.
            *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
            *("--kill-on-bad-exit=1", "--input=0", "--export=ALL"),
            *command,
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
