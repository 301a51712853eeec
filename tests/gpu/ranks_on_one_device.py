"""Two ranks that share one GPU, started by torchrun: `python -m tests.gpu.ranks_on_one_device TRIALS`.

The project lets ranks share a device only for whole training runs, over Gloo. Here they use NCCL and captured steps,
because the tests check results, not times. TRIALS is a JSON list of trials' fields. For each trial, rank 0 prints a
line of JSON: the message of each rank's gate (None if it passed), and the facts of rank 0.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from labkit.data import open_data
from tests.prepared import prepared
from workbook import ranks
from workbook.errors import GateError
from workbook.trials.trial import trial_from_dict


def main() -> None:
    """Prepare and check each trial."""
    torch.cuda.set_device(0)
    world = ranks.World([2], backend="nccl")
    team = world.team_of(2)
    assert team is not None
    for fields in json.loads(sys.argv[1]):
        with ranks.working_as(team):
            message, facts = outcome(fields)
        messages = team.gather(message)
        if world.rank == 0:
            print(json.dumps({"said": messages, "facts": facts}), flush=True)
    world.wait_for_all()


def outcome(fields: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the message of the gate, or None if the trial passes, and the facts."""
    data = open_data(fields["data"])
    workload = prepared(trial_from_dict({**fields, "data_checksum": data.checksum}), data)
    try:
        workload.check()
    except GateError as error:
        return str(error), workload.facts
    return None, workload.facts


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the project's ranks end like this: on Python's normal exit, threads of NCCL have aborted
