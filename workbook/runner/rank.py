"""One of several processes that run a pass together. torchrun starts it (`workbook.runner.nodes.launcher`).

Each rank receives its job over a line (a TCP connection) to the runner. Rank 0 reports as a worker does
(`workbook.runner.worker`); ranks 1 and up report only their failures. A rank whose line ends has lost the runner, and
ends with its children. On request a rank sends its stack, to find ranks that
hang.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import traceback
from typing import Any

from workbook import ranks
from workbook.engines.state import free_memory
from workbook.errors import Unsupported
from workbook.hardware.limits import usable_threads
from workbook.lifetime import end_after
from workbook.runner.execution import failure, follow, run
from workbook.runner.framework import said_of
from workbook.runner.preparing import Data
from workbook.runner.protocol import NODE, TOKEN, Events, Pass, line_to_runner, startup_s, without_paths
from workbook.trials.trial import Trial, trial_from_dict


def main() -> int:
    """Run the job that the runner sends. Report also a failure before, between and after its trials."""
    faulthandler.enable()
    os.dup2(2, 1)  # output of libraries goes to the log
    _take_number()
    line = Line()
    try:
        return _work(line)
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the reason of the trials' rows
        line.send(event="failed", **failure(error))
        return 3


def _work(line: Line) -> int:
    """Run the trials of the line's job. Return 0, or 3 after a trial that leaves this process in an unknown state."""
    job = line.job
    trials = [trial_from_dict(values) for values in job["trials"]]
    on_gpus = any(trial.device == "cuda" for trial in trials)
    if on_gpus:
        import torch
    # A trial on more devices than this node has gets no team, however many processes there are, and is refused.
    available = torch.cuda.device_count() if on_gpus else usable_threads()
    fitting = [trial for trial in trials if trial.devices_of_node <= available]
    shared = any(trial.placement == "together" for trial in trials)  # NCCL needs one device per rank
    world = ranks.World(
        (trial.processes for trial in fitting),
        backend="nccl" if on_gpus and not shared else "gloo",
        halved=(trial.processes for trial in fitting if trial.arrangement == "at_once"),
    )
    if world.rank == 0:
        line.send(event="hello", **said_of(job["trials"]), startup_s=startup_s(job))
    of_pass = Pass.model_validate(job["pass"])
    data = Data(of_pass.weights)
    for trial, passed in zip(trials, job["gate_passed"], strict=True):
        team = world.team_of(trial.processes) if trial in fitting else None
        if on_gpus and trial.device == "cuda" and (team is not None or world.rank == 0):
            # Local rank r has device r, except ranks that share device 0. A rank without a team may have no device.
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) if trial.processes == trial.devices_taken else 0)
        with ranks.working_as(team):
            if world.rank:
                outcome = _follow(trial, of_pass, data, passed)
            else:
                line.send(event="start", key=trial.key)
                outcome = run(trial, of_pass, data, line, gate_passed=passed)
                line.send(event="done", key=trial.key, **outcome)
        if world.rank and team is not None:
            free_memory(trial.device)  # cached memory would be missing to later trials of other ranks on this device
        if outcome["status"] in ("oom", "crashed"):
            if world.rank:
                line.send(event="failed", **outcome)
            return 3  # the remains of such a trial must not affect the next: the runner starts fresh processes
    world.wait_for_all()  # torchrun kills the ranks that still run when another rank ends badly
    line.send(event="bye")
    return 0


def _take_number() -> None:
    """Renumber the ranks so that the first node's come first: the runner, its clock and its telemetry are there.

    torchrun numbers nodes by their addresses. No rank hosts torchrun's store, so new numbers are safe.
    """
    of_node, own = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    os.environ["RANK"] = str(int(os.environ[NODE]) * of_node + own)


def _follow(trial: Trial, of_pass: Pass, data: Data, gate_passed: bool) -> dict[str, Any]:
    """Run a trial on a rank other than 0. Return its status, and the reason of a failure."""
    if ranks.team() is None:
        return {"status": "ok"}  # this rank takes no part
    try:
        follow(trial, of_pass, data, gate_passed=gate_passed)
    except Unsupported:
        return {"status": "unsupported"}  # rank 0 reports the reason
    except Exception as error:  # noqa: BLE001 - whatever a trial raises becomes its row
        return failure(error)
    return {"status": "ok"}


class Line(Events):
    """The connection to the runner: JSON lines over a socket, in both directions. `job` is the first line received."""

    def __init__(self) -> None:
        self._socket = line_to_runner()
        self._rank, self._lock = int(os.environ["RANK"]), threading.Lock()
        self.send(token=os.environ[TOKEN], pid=os.getpid())
        self._lines = self._socket.makefile("rb")
        self.job: dict[str, Any] = json.loads(self._lines.readline())
        self._main = threading.main_thread().ident
        end_after(self._listen)

    def send(self, **event: Any) -> None:
        """Send an event with this rank's number."""
        data = (json.dumps({"rank": self._rank, **event}, allow_nan=False) + "\n").encode()
        with self._lock:
            self._socket.sendall(data)

    def _listen(self) -> None:
        for line in self._lines:
            if json.loads(line).get("ask") == "stack":
                frame = sys._current_frames().get(self._main or 0)
                stack = traceback.format_stack(frame) if frame else []
                self.send(event="stack", stack=[without_paths(entry) for entry in stack])


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # skips Python's shutdown, in which threads of Gloo and NCCL have been seen to abort
