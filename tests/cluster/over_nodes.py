"""What a job of two nodes measures: `python -m tests.cluster.over_nodes REPORT sound|faulty`, on its first node."""

from __future__ import annotations

import sys
from pathlib import Path

from labkit.data import open_data
from labkit.trial import Trial
from tests.faulty.campaign import run

LIMIT_S = 25.0
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


if __name__ == "__main__":
    trials = {"sound": sound, "faulty": faulty}[sys.argv[2]]()
    run(trials, Path(sys.argv[1]), limit_s=120.0 if sys.argv[2] == "sound" else LIMIT_S)
