"""The protocol between the runner and the processes that it starts: variables, events and connections."""

from __future__ import annotations

import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from workbook.hardware.profile import Timing
from workbook.paths import ROOT

# Variables of a rank: the address at which the runner listens, and the token that identifies the runner's ranks.
ADDRESS, TOKEN = "LABKIT_RUNNER", "LABKIT_TOKEN"
# Variable of each of several nodes: its number. Node 0 is the runner's.
NODE = "LABKIT_NODE"
# A matrix product, a copy or a message is steady at once, so a share of the timed seconds of image trials is enough.
CEILING_SHARE = 0.25
# A lost node sends nothing. With these settings its line ends after a minute without an answer.
ALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))


class Pass(BaseModel, frozen=True):
    """The settings that all processes of a pass share."""

    number: int
    timing: Timing
    gap_seed: int = 0
    short: bool = False  # the trials run without what they ask for beside their timed blocks
    weights: Path | None = None  # the folder of trained weights; None for the one in the cache
    traces: Path | None = None  # the folder for traces; None if no traces are kept


class Events(ABC):
    """The channel for events from a process to the runner."""

    _last_s = 0.0

    @abstractmethod
    def send(self, **event: Any) -> None:
        """Send an event as one line of JSON."""

    def progress(self, phase: str, share: float) -> None:
        """Send a trial's phase and the share of it that is done, 0 to 1, at most twice a second."""
        now = time.monotonic()
        if now - self._last_s >= 0.5:
            self._last_s = now
            self.send(event="progress", phase=phase, share=share)


def startup_s(job: dict[str, Any]) -> float:
    """Return the seconds since the runner spawned this process. Processes of a machine share the monotonic clock."""
    return time.monotonic() - float(job["spawned_s"])


def line_to_runner() -> socket.socket:
    """Return a connection to the runner. Raise OSError if the runner does not answer."""
    host, port = os.environ[ADDRESS].rsplit(":", 1)
    return kept_alive(socket.create_connection((host, int(port))))


def kept_alive(line: socket.socket) -> socket.socket:
    """Set keep-alive options, so that the connection ends when the peer's machine is gone. Return the connection."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ALIVE:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
    return line


def without_paths(text: str) -> str:
    """Return a text without this machine's folders, because records are published."""
    for folder, name in ((str(ROOT), "."), (sys.prefix, "(environment)"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return text.encode(errors="replace").decode()  # a file name may hold bytes that are no text
