"""Two ranks that share one GPU, started by torchrun: `python -m tests.gpu.ranks_on_one_device TRIALS`.

The project itself lets ranks share a device for whole training runs only, by Gloo. Here they do it by NCCL and in
captured steps, since only what they compute is asked, and not how long it takes. TRIALS is a JSON list of fields of
trials; rank 0 prints a line of JSON for each: what the ranks' gates said (None: passed), and the facts of rank 0.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from labkit import ranks
from labkit.data import open_data
from labkit.errors import GateError
from labkit.trial import trial_from_dict
from tests.prepared import prepared


def main() -> None:
    """Prepare and check each trial."""
    torch.cuda.set_device(0)
    world = ranks.World([2], backend="nccl")
    team = world.team_of(2)
    assert team is not None
    for fields in json.loads(sys.argv[1]):
        with ranks.working_as(team):
            said, facts = outcome(fields)
        told = team.gather(said)
        if world.rank == 0:
            print(json.dumps({"said": told, "facts": facts}), flush=True)
    world.wait_for_all()


def outcome(fields: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """What the gate says, and the facts."""
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
    os._exit(0)  # as the project's ranks leave: threads of NCCL have been seen to abort in Python's own way
