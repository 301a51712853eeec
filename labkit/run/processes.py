"""Which processes run which trials of a pass: one, or several ranks, on one node or more, and in what environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.hardware.cpu_limits import usable_threads
from labkit.hardware.frameworks import environment_of, is_keras
from labkit.hardware.host import Host
from labkit.hardware.matching import device_indices
from labkit.hardware.profile import Profile, Timing
from labkit.run.available import why_not
from labkit.run.group import GroupProcess
from labkit.run.network import network_of
from labkit.run.nodes import Nodes
from labkit.run.process import Spawned, Work, WorkerProcess
from labkit.run.protocol import TRACES
from labkit.trial import Trial

KEEP_TRACES = "KEEP_TRACES"  # in the environment: 1 keeps a file of each traced trial


def processes_of(trial: Trial) -> tuple[object, ...]:
    """What trials that share processes have in common.

    What NCCL may use is settled when a process begins, and so are Keras's back end and its device. Over several nodes
    the ranks of a trial are as many on each, so that those of a smaller one are not the first of a larger one's. A
    process that has all devices has them without ranks beside it. Those that share one device exchange by another way,
    and are more than there are devices: trials on one process are not timed beside them.
    """
    if is_keras(trial.framework):
        return trial.framework, trial.device
    over_nodes = (trial.nodes, trial.devices) if trial.nodes > 1 else ()
    return tuple(network_of(trial).items()), over_nodes, trial.parallel, trial.placement


@dataclass(frozen=True)
class Processes:
    """Starts the processes of one call of `measure`."""

    profile: Profile
    host: Host
    timing: Timing
    nodes: Nodes
    log: Path
    traces: Path  # where they are kept, if they are

    def start(self, trials: Sequence[Trial], *, gap_seed: int, pass_number: int) -> Spawned:
        """One process for trials on one device; as many as the largest trial wants, or as there are devices, else.

        Trials that want more devices or nodes than there are get one too, which refuses them. `trials` may share
        processes.
        """
        indices = device_indices(self.profile, self.host) if self.profile.device.kind == "cuda" else []
        available = len(indices) or usable_threads()
        first = trials[0]
        work = Work(
            trials=trials,
            timing=self.timing,
            log=self.log,
            environment=self._environment() | network_of(first) | environment_of(first.framework, first.device),
            gap_seed=gap_seed,
            pass_number=pass_number,
        )
        if is_keras(first.framework):  # it has all of a machine's devices in one process, or refuses
            return WorkerProcess(work)
        if 1 < first.nodes <= self.nodes.count and first.devices_of_node <= available:
            return GroupProcess(work, ranks=first.processes, nodes=self.nodes)
        ranks = max((one.processes for one in trials if one.nodes == 1 and one.devices_taken <= available), default=1)
        if ranks == 1:
            return WorkerProcess(work)
        return GroupProcess(work, ranks=ranks)

    def why_none(self, trial: Trial) -> str | None:
        """Why there can be no process for trials of this one's framework, and what to do; None where there can."""
        return why_not(trial.framework, trial.device, gpu=self._environment()["CUDA_VISIBLE_DEVICES"])

    def _environment(self) -> dict[str, str]:
        """The worker sees the profile's devices and no others; where traces are kept it knows in which folder."""
        kept = {TRACES: str(self.traces.absolute())} if os.environ.get(KEEP_TRACES) == "1" else {}
        if self.profile.device.kind == "cpu":
            return {"CUDA_VISIBLE_DEVICES": "", **kept}
        indices = ",".join(map(str, device_indices(self.profile, self.host)))
        return {"CUDA_VISIBLE_DEVICES": indices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **kept}
