"""Measurements of a job of two nodes. Run `python -m tests.cluster.over_nodes REPORT` on the first node."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from labkit.data import open_data
from tests.faulty.campaign import run
from workbook.trials.trial import Trial

LIMIT_S = 25.0
FAILING = ("raises", "kill", "hang")  # fault of rank 1, on the second node


def over_two(workload: str, *, size: int = 0) -> Trial:
    """Return a trial of a workload of `tests.faulty` with a rank on each of two nodes."""
    return Trial(workload=f"tests.faulty.{workload}", device="cpu", data="none", devices=2, nodes=2, size=size)


def main(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    alone = Trial(model="resnet18", batch=8, device="cpu", data=data.name, data_checksum=data.checksum)
    run([alone, replace(alone, devices=2, nodes=2), over_two("together_where")], report, limit_s=120.0)
    # The order in which these trials run is random.
    failing = [over_two(f"together_{how}", size=2) for how in FAILING]
    run([*failing, *(over_two("together", size=size) for size in (7, 8, 9))], report, limit_s=LIMIT_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
