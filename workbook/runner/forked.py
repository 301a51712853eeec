"""The runner's side of forked workers: the process that forks them, and a worker with the methods of `Popen`.

A forked worker starts in tenths of a second, because its parent (`workbook.forkserver`) has imported PyTorch. Each run
has a parent of its own: the layout of memory and the hash seed, which siblings share, then differ between runs.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from workbook.hardware.environment import read_at_start

IMPORTS_LIMIT_S = 300.0  # importing PyTorch from a cold network disk can take minutes
POLL_S = 0.01


class ParentGone(Exception):  # noqa: N818 - a worker then starts by itself
    """The parent of workers has ended, or does not answer."""


class _Parent:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, of_parent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(IMPORTS_LIMIT_S)
        self._asked = 0
        with of_parent:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workbook.forkserver"],
                stdin=of_parent.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a worker that starts by itself says what is wrong
                env=environment,
                start_new_session=True,
            )

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> Any:
        """Return the answer to a request, whose number it has: an interrupt can leave one unread. Raise ParentGone."""
        self._asked += 1
        number, answer = 0, None
        try:
            socket.send_fds(self._socket, [json.dumps([self._asked, request]).encode()], descriptors)
            while number < self._asked:
                number, answer = json.loads(self._socket.recv(100) or b"{}")
        except (OSError, ValueError) as error:
            raise ParentGone from error
        return answer

    def close(self) -> None:
        """End the parent. Its workers go on."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


# What a parent was started for (the run, this process, the variables that it has read), and the parent; None for a run
# whose parent has gone.
_key: tuple[Hashable, int, Mapping[str, str]] | None = None
_parent: _Parent | None = None


def end_parent() -> None:
    """End the parent of workers that this process has started, if there is one."""
    global _key, _parent
    if _parent and _key and _key[1] == os.getpid():
        _parent.close()
    _key = _parent = None


atexit.register(end_parent)


class ForkedWorker:
    """A forked `workbook.runner.worker` that leads a process group, with what the runner uses of `subprocess.Popen`."""

    def __init__(self, run: Hashable, environment: Mapping[str, str], log: Path) -> None:
        """Fork a worker of a run. Start the run's parent if there is none. Raise ParentGone, for the rest of the run.

        `environment` is the worker's. Its words go to `log`.
        """
        global _key, _parent
        if (key := (run, os.getpid(), read_at_start(environment))) != _key:
            end_parent()
            _key, _parent = key, _Parent(environment)
        if not _parent:
            raise ParentGone
        self._parent = _parent
        self._exit_code: int | None = None
        job, stdin = os.pipe()
        stdout, events = os.pipe()
        with log.open("ab") as errors, os.fdopen(job), os.fdopen(events, "wb"):
            self.stdin: IO[bytes] = os.fdopen(stdin, "wb", buffering=0)
            self.stdout: IO[bytes] = os.fdopen(stdout, "rb")
            try:
                request = {"environment": dict(environment), "folder": str(Path.cwd())}
                self.pid: int = self._parent.ask(request, (job, events, errors.fileno()))
            except ParentGone:
                self.stdin.close()
                self.stdout.close()
                self._parent.close()
                _parent = None
                raise

    def poll(self) -> int | None:
        """Return the exit code, or None while the worker runs. Without its parent a worker counts as killed."""
        if self._exit_code is None:
            try:
                self._exit_code = self._parent.ask({"exit_code_of": self.pid})
            except ParentGone:
                self._exit_code = -signal.SIGKILL
        return self._exit_code

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code when the worker has ended. Raise TimeoutError if it still runs after `timeout_s`."""
        began = time.monotonic()
        while (code := self.poll()) is None:
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                raise TimeoutError
            time.sleep(POLL_S)
        return code
