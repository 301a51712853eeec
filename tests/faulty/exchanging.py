"""Measure the bytes two ranks exchange, in a network namespace: `python -m tests.faulty.exchanging REPORT`.

The operating system's network counters include all processes, and other tests run ranks too. Where the kernel
permits no new network namespace, the measurement uses the host's network.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from labkit.data import DataSet, open_data
from tests.faulty.campaign import HOST, STUDY, tiny_profile
from workbook.hardware.profile import Timing
from workbook.records.store import Store
from workbook.reuters import open_documents
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.trial import Trial

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1  # ioctl requests and flag of a network interface
TRACED = 3


def own_network() -> bool:
    """Move this process and its children into a network namespace with loopback. Return whether that succeeded."""
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(CLONE_NEWNET) and unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        _, flags = struct.unpack("16sh", fcntl.ioctl(probe, GET_FLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(probe, SET_FLAGS, struct.pack("16sh", b"lo", flags | IS_UP))
    return True


def of(data: DataSet) -> dict[str, Any]:
    """Return the fields of a trial that describe a data set."""
    return {"data": data.name, "data_checksum": data.checksum, "classes": data.classes}


def trials() -> dict[str, Trial]:
    """Return trials by name, all of two ranks but "alone". Traced trials use ResNet-18, the others a faster network."""
    about: dict[str, Any] = {"batch": 4, "device": "cpu"}
    images = open_data("synthetic32", train_images=160, val_images=40)
    documents = open_documents(train_documents=160, val_documents=40)
    traced = about | {"model": "resnet18", "traced_iterations": TRACED, **of(images)}
    quick = about | {"model": "mlp512", "devices": 2, **of(documents)}
    return {
        "fp32": Trial(devices=2, **traced),
        "fp16": Trial(gradient_precision="fp16", **quick),
        "in turns": Trial(arrangement="in_sequence", **quick),
        "stale": Trial(updates="asynchronous", **quick),
        "alone": Trial(devices=1, **traced),
    }


def main(report: Path) -> None:
    """Measure each trial for about 1 s."""
    own_network()
    timing = Timing(warmup_s=0.2, timed_s=1.2, block_s=0.2, limit_s=120, passes=1)
    profile = tiny_profile().model_copy(update={"timing": {"smoke": timing}})
    measure(
        list(trials().values()),
        study=STUDY,
        session=Session(scale="smoke", profile=profile, host=HOST, store=Store(report)),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
