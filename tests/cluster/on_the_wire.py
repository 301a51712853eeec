"""Training that counts what it sends: after each block, the bytes that the shaper of its interface has let through."""

from __future__ import annotations

import json
import os
import subprocess

from labkit.data import DataSet
from labkit.trial import Trial
from labkit.workloads.train import TrainWorkload


class OnTheWire(TrainWorkload):
    """`sent_bytes` has one number a call of `read_loss`, which is between blocks and not timed."""

    def __init__(self, trial: Trial, data: DataSet) -> None:
        super().__init__(trial, data)
        self.facts["sent_bytes"] = []

    def read_loss(self) -> float | None:
        self.facts["sent_bytes"].append(sent_bytes(os.environ["GLOO_SOCKET_IFNAME"]))
        return super().read_loss()


def sent_bytes(interface: str) -> int:
    """As the shaper counts them: with the headers of every packet."""
    told = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", interface], check=True, capture_output=True, text=True
    )
    return int(next(one["bytes"] for one in json.loads(told.stdout) if one.get("root")))


def build(trial: Trial, data: DataSet) -> OnTheWire:
    """The training of a trial."""
    return OnTheWire(trial, data)
