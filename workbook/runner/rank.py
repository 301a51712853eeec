"""One of several processes that run a pass together. torchrun starts it (`workbook.runner.nodes.launcher`).

Each rank takes the job from the group's store, writes a failure there, and ends with it. Rank 0 reports as a worker
does (`workbook.runner.worker`).
"""

from __future__ import annotations

import faulthandler
import os
import sys
from functools import partial
from typing import Any

import torch

from workbook import ranks
from workbook.engines.state import free_memory
from workbook.errors import Unsupported
from workbook.hardware.limits import usable_threads
from workbook.lifetime import end_after
from workbook.runner.execution import failure, follow, run
from workbook.runner.framework import said_of
from workbook.runner.group import GroupStore
from workbook.runner.preparing import Data
from workbook.runner.protocol import Events, Pass, startup_s
from workbook.trials.trial import Trial, trial_from_dict


def main() -> int:
    """Run the store's job. Return 0, or 3 after a trial that leaves this process in an unknown state."""
    faulthandler.enable()
    events, rank = Events(), int(os.environ["RANK"])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = GroupStore(*address)
    end_after(partial(GroupStore(*address).follow, rank))
    try:
        failed = _work(store.get("job"), events)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a library raises is the reason of the trials' rows
        failed = failure(error)
    if failed:
        store.fail(rank, failed)
        return 3  # the remains of such a trial must not affect the next: the runner starts fresh processes
    return 0


def _work(job: dict[str, Any], events: Events) -> dict[str, Any] | None:
    """Run the job's trials. Return the outcome of one that crashed or ran out of memory here, else None."""
    trials = [trial_from_dict(values) for values in job["trials"]]
    on_gpus = any(trial.device == "cuda" for trial in trials)
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
        events.send(event="hello", **said_of(job["trials"]), startup_s=startup_s(job))
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
                events.send(event="start", key=trial.key)
                outcome = run(trial, of_pass, data, events, gate_passed=passed)
        if outcome["status"] in ("oom", "crashed"):
            return outcome
        if world.rank == 0:
            events.send(event="done", key=trial.key, **outcome)
        elif team is not None:
            free_memory(trial.device)  # cached memory would be missing to later trials of other ranks on this device
    world.wait_for_all()  # torchrun kills the ranks that still run when another rank ends badly
    return None


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


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # skips Python's shutdown, in which threads of Gloo and NCCL have been seen to abort
