"""What the runner and the processes that it starts agree on."""

from __future__ import annotations

import os
import socket
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from labkit.places import ROOT

# In the environment of a rank: where the runner listens, and what shows the rank to be one of its own.
ADDRESS, TOKEN = "LABKIT_RUNNER", "LABKIT_TOKEN"
# Of one of several nodes: its number, from 0, which is the runner's own.
NODE = "LABKIT_NODE"
# In the environment of a worker: the folder where traces are kept, of the study and host; not there where none are.
TRACES = "LABKIT_TRACES"
# A product, a copy or a message settles at once: of the time that a trial with images is timed, a share is enough.
CEILING_SHARE = 0.25
# A node that is gone says nothing; after a minute without an answer its line has ended.
ALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))


class Events(ABC):
    """The way from a process to the runner."""

    _last_s = 0.0

    @abstractmethod
    def send(self, **event: Any) -> None:
        """One event, as one line of JSON."""

    def progress(self, phase: str, share: float) -> None:
        """The phase of a trial and how much of it is done, 0 to 1; sent twice a second at most."""
        now = time.monotonic()
        if now - self._last_s >= 0.5:
            self._last_s = now
            self.send(event="progress", phase=phase, share=share)


def startup_s(job: dict[str, Any]) -> float:
    """Seconds since the runner spawned this process: the monotonic clock is one for the whole machine."""
    return time.monotonic() - float(job["spawned_s"])


def line_to_runner() -> socket.socket:
    """A connection to the runner; OSError where there is none."""
    host, port = os.environ[ADDRESS].rsplit(":", 1)
    return kept_alive(socket.create_connection((host, int(port))))


def kept_alive(line: socket.socket) -> socket.socket:
    """The connection, which ends when the machine at its other end is gone."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ALIVE:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
    return line


def without_paths(text: str) -> str:
    """A traceback without the folders of this machine: records are shown to others."""
    for folder, name in ((str(ROOT), "."), (sys.prefix, "(environment)"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return text.encode(errors="replace").decode()  # a file name in it may hold what is no text
