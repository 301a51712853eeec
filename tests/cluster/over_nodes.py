"""What a job of two nodes measures: `python -m tests.cluster.over_nodes REPORT sound|faulty`, on its first node."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil

from labkit.data import open_data
from labkit.run.protocol import TOKEN
from labkit.trial import Trial
from tests.faulty.campaign import run

LIMIT_S = 25.0
LEFT = "left.json"
FAILING = ("raises", "kill", "hang")  # on the second of two nodes, which is rank 1


def together(workload: str, **fields: object) -> Trial:
    """Two ranks of `tests.faulty`, one on each node."""
    about = {"device": "cpu", "data": "none", "devices": 2, "nodes": 2, **fields}
    return Trial(workload=f"tests.faulty.{workload}", **about)  # type: ignore[arg-type]


def sound() -> list[Trial]:
    """A training on both nodes, one on the first, ranks that say where they are, and more nodes than there are."""
    data = open_data("synthetic32", train_images=160, val_images=40)
    train = {"model": "resnet18", "batch": 8, "device": "cpu", "data": data.name, "data_checksum": data.checksum}
    return [
        Trial(**train, devices=2, nodes=2),  # type: ignore[arg-type]
        Trial(**train),  # type: ignore[arg-type]
        together("together_where"),
        together("together", nodes=3, devices=3),
    ]


def faulty() -> list[Trial]:
    """Each way to fail, and trials in which nothing does: which of them runs when, chance decides."""
    return [
        *(together(f"together_{how}", size=2) for how in FAILING),
        *(together("together", size=size) for size in (7, 8, 9)),
    ]


def left_running() -> list[list[str]]:
    """Commands of what this job has started on its nodes, both of which are this host, and has not ended in time."""
    deadline = time.monotonic() + 10
    while True:
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if TOKEN in environment and environment.get("SLURM_JOB_ID") == os.environ["SLURM_JOB_ID"]:
                    found.append(process.cmdline())
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


if __name__ == "__main__":
    report = Path(sys.argv[1])
    trials = {"sound": sound, "faulty": faulty}[sys.argv[2]]()
    run(trials, report, limit_s=120.0 if sys.argv[2] == "sound" else LIMIT_S)
    (report / LEFT).write_text(json.dumps(left_running()))
