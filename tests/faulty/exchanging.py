"""What two ranks send to each other, in a network of its own: `python -m tests.faulty.exchanging REPORT`.

Counters of the operating system's network are of all its processes, and other tests have ranks too. Where the kernel
gives no network of one's own, the one of all is taken.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import sys
from pathlib import Path

from labkit.data import DataSet, open_data
from labkit.hardware.profile import Timing
from labkit.records.store import Store
from labkit.run import measure
from labkit.trial import Trial
from tests.faulty.campaign import HOST, STUDY, tiny_profile

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 1  # of an interface
TRACED = 3


def own_network() -> bool:
    """Move this process, and those it starts, into a network of its own, in which loopback works."""
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(CLONE_NEWNET) and unshare(CLONE_NEWUSER | CLONE_NEWNET):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        _, flags = struct.unpack("16sh", fcntl.ioctl(one, GET_FLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(one, SET_FLAGS, struct.pack("16sh", b"lo", flags | IS_UP))
    return True


def trials(data: DataSet) -> dict[str, Trial]:
    """Of ResNet-18 on two ranks, by what is asked of them."""
    about = {"model": "resnet18", "batch": 4, "device": "cpu", "data": data.name, "data_checksum": data.checksum}
    return {
        "fp32": Trial(devices=2, traced_iterations=TRACED, **about),
        "fp16": Trial(devices=2, gradient_precision="fp16", **about),
        "in turns": Trial(devices=2, arrangement="in_sequence", **about),
        "stale": Trial(devices=2, updates="asynchronous", **about),
        "alone": Trial(devices=1, traced_iterations=TRACED, **about),
    }


def small() -> DataSet:
    """Images to train on."""
    return open_data("synthetic32", train_images=160, val_images=40)


def main(report: Path) -> None:
    """Time each for about two seconds."""
    own_network()
    timing = Timing(warmup_s=0.3, timed_s=2.0, block_s=0.2, limit_s=120, passes=1)
    profile = tiny_profile().model_copy(update={"timing": {"smoke": timing}})
    measure(list(trials(small()).values()), study=STUDY, scale="smoke", profile=profile, host=HOST, store=Store(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
