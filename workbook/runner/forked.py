"""Workers forked from a process that has imported PyTorch: each starts in tenths of a second instead of seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import IO, Any

from workbook.hardware.environment import for_workers, read_at_start

IMPORTS = "workbook.runner.imports"  # what the parent of all workers imports; it touches no device
NAME = "labkit-worker"  # of a worker and its children, in `top` and `ps`

_begun: tuple[int, dict[str, str]] | None = None  # the process that began the parent, and what the parent read


def can_fork(interpreter: str) -> bool:
    """Return whether a worker of this interpreter can be forked now. Begin the parent of workers if there is none.

    The parent lives as long as this process, whose forks have no right to it. It has read the variables that frameworks
    read as they are imported, so workers start by themselves once these have changed.
    """
    global _begun
    if interpreter != sys.executable:
        return False
    if _begun is None:
        _begin()
        _begun = os.getpid(), read_at_start()
    return _begun == (os.getpid(), read_at_start())


def _begin() -> None:
    before = dict(os.environ)
    multiprocessing.get_context("forkserver").set_forkserver_preload([IMPORTS])
    try:
        os.environ.clear()
        os.environ.update(for_workers(before))
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


class ForkedWorker:
    """A forked `workbook.runner.worker` in a session of its own, with what the runner uses of `subprocess.Popen`."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        (job, stdin), (stdout, events) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(job, events, str(log), dict(environment), str(Path.cwd())))
        self._process.start()
        for of_worker in (job, events):
            of_worker.close()
        self.pid: int = self._process.pid or 0
        self.stdin: IO[bytes] = os.fdopen(os.dup(stdin.fileno()), "wb", buffering=0)
        self.stdout: IO[bytes] = os.fdopen(os.dup(stdout.fileno()), "rb")
        for own in (stdin, stdout):
            own.close()

    def poll(self) -> int | None:
        """Return the exit code, or None while the worker runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code when the worker has ended. Raise TimeoutError if it still runs after `timeout_s`."""
        self._process.join(timeout_s)
        if (code := self.poll()) is None:
            raise TimeoutError
        return code

    def kill(self) -> None:
        """Kill the worker unless it has ended."""
        self._process.kill()


def _work(job: Any, events: Any, log: str, environment: Mapping[str, str], folder: str) -> None:
    """Become a worker whose job comes through a pipe, whose events go through another, and whose words go to a log."""
    os.setsid()  # so that killing the session also kills the worker's children
    Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    errors = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for number, source in enumerate((job.fileno(), events.fileno(), errors)):
        os.dup2(source, number)
    job.close()
    events.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for the process's life
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    from workbook.runner import worker

    sys.exit(worker.main())
