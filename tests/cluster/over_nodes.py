"""The measurements of a job of two nodes: `python -m tests.cluster.over_nodes REPORT`, on its first node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from labkit.data import open_data
from labkit.trial import Trial
from tests.faulty.campaign import run

LIMIT_S = 25.0
FAILING = ("raises", "kill", "hang")  # on the second of two nodes, which is rank 1


def over_two(workload: str, *, size: int = 0) -> Trial:
    """Two ranks of `tests.faulty`, one on each node."""
    return Trial(workload=f"tests.faulty.{workload}", device="cpu", data="none", devices=2, nodes=2, size=size)


def main(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    alone = Trial(model="resnet18", batch=8, device="cpu", data=data.name, data_checksum=data.checksum)
    run([alone, replace(alone, devices=2, nodes=2), over_two("together_where")], report, limit_s=120.0)
    # Chance decides which of them runs when.
    failing = [over_two(f"together_{how}", size=2) for how in FAILING]
    run([*failing, *(over_two("together", size=size) for size in (7, 8, 9))], report, limit_s=LIMIT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
