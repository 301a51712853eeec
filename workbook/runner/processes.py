"""Chooses the processes that run a pass's trials: one worker or several ranks, their nodes and their environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbook.hardware.frameworks import environment_of, is_keras
from workbook.hardware.limits import usable_threads
from workbook.runner.available import why_not
from workbook.runner.nodes.allocation import Nodes
from workbook.runner.nodes.network import network_of
from workbook.runner.process import GroupProcess, Work, WorkerProcess
from workbook.runner.protocol import Pass
from workbook.session import Session
from workbook.trials.trial import Trial


def processes_of(trial: Trial) -> tuple[object, ...]:
    """Return the properties that trials must have in common to share processes.

    NCCL's settings, Keras's back end and its device are fixed when a process begins. Over several nodes each node runs
    equally many ranks, so the ranks of a smaller trial are not the first ranks of a larger one. A process that uses all
    devices (`parallel`) runs without further ranks. Ranks that share one device (`placement`) exchange over another
    back end and can outnumber the devices, so trials of one process are not timed beside them. A trial on one GPU is
    traced more often, and its process ends then, which costs a group of ranks seconds.
    """
    if is_keras(trial.framework):
        return trial.framework, trial.device
    over_nodes = (trial.nodes, trial.devices) if trial.nodes > 1 else ()
    is_group = trial.device == "cuda" and trial.processes > 1
    return tuple(network_of(trial).items()), over_nodes, trial.parallel, trial.placement, is_group


def of_next_process(pending: Sequence[Trial], of_pass: Pass) -> list[Trial]:
    """Return the trials of `pending` that the next process runs, in their order.

    They share the first trial's `processes_of`. A trial that traces a GPU is the last of its process: CUPTI stays
    attached, and the process then launches kernels up to three times as slowly (`benchmarks/process_history.py`).
    """
    wanted, together = processes_of(pending[0]), list[Trial]()
    for trial in pending:
        if processes_of(trial) == wanted:
            together.append(trial)
            if of_pass.traces_gpu(trial):
                break
    return together


@dataclass(frozen=True)
class Processes:
    """The settings and the start of the processes of one call of `measure`."""

    session: Session
    nodes: Nodes
    log: Path
    are_forked: bool = False

    def start(self, trials: Sequence[Trial], of_pass: Pass, gate_passed: Sequence[bool] = ()) -> WorkerProcess:
        """Start one process per rank of the largest of `trials` that fits this machine; one worker without such ranks.

        `trials` have the same `processes_of`. A trial that wants more devices or nodes than there are is refused by
        the processes.
        """
        available = len(self.session.devices) or usable_threads()
        first = trials[0]
        work = Work(
            trials=trials,
            of_pass=of_pass,
            log=self.log,
            environment=self._environment() | network_of(first) | environment_of(first.framework, first.device),
            gate_passed=gate_passed,
            is_forked=self.are_forked,
        )
        if is_keras(first.framework):  # one process has all of a machine's devices, or refuses
            return WorkerProcess(work)
        if 1 < first.nodes <= self.nodes.count and first.devices_of_node <= available:
            return GroupProcess(work, ranks=first.processes, nodes=self.nodes)
        ranks = max((t.processes for t in trials if t.nodes == 1 and t.devices_taken <= available), default=1)
        if ranks == 1:
            return WorkerProcess(work)
        return GroupProcess(work, ranks=ranks)

    def why_none(self, trial: Trial) -> str | None:
        """Return why no process can run trials of this trial's framework, and what to do; None if one can."""
        return why_not(trial.framework, trial.device, gpu=self._environment()["CUDA_VISIBLE_DEVICES"])

    def _environment(self) -> dict[str, str]:
        """Return the variables that restrict a worker to the profile's devices."""
        if self.session.profile.device.kind == "cpu":
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.session.devices)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
