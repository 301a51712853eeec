"""The parent of forked workers: a process that has imported PyTorch, and forks a worker at each request.

The runner starts it as `python -m workbook.forkserver` with a socket as stdin (`workbook.runner.forked`). A forked
worker goes on as `workbook.runner.worker` does when it starts by itself. The parent imports nothing of the suite, whose
code may be edited meanwhile, and calls nothing that starts CUDA: a fork of a process with CUDA has none.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "labkit-worker"  # of a worker and its children, in `top` and `ps`
MOST_BYTES = 2**20  # of a request


def main() -> int:
    """Fork a worker at each request until the runner is gone. Return the exit code, of the parent or of a worker."""
    from labkit.torchvision_import import import_torchvision

    import_torchvision()  # and with it PyTorch and its tracing compiler
    if not _serve():
        return 0
    from workbook.runner.worker import main as work

    return work()


def _serve() -> bool:
    """Answer requests. Return False when the runner is gone, and True in a worker."""
    with socket.socket(fileno=os.dup(0)) as runner:
        while True:
            message, descriptors, _, _ = socket.recv_fds(runner, MOST_BYTES, 3)
            if not message:
                return False
            asked, request = json.loads(message)
            if "exit_code_of" in request:
                answer: Any = _exit_code(request["exit_code_of"])
            else:
                with warnings.catch_warnings():  # threads of libraries stay behind, as these libraries expect
                    warnings.simplefilter("ignore", DeprecationWarning)
                    answer = os.fork()
                if not answer:
                    break
                _lead_group(answer)
                for descriptor in descriptors:
                    os.close(descriptor)
            runner.send(json.dumps([asked, answer]).encode())
    _lead_group(os.getpid())
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with suppress(OSError):
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    return True


def _lead_group(pid: int) -> None:
    """Let a worker lead a group, so that killing the group also kills the worker's children. Both sides do it."""
    with suppress(OSError):  # the other side was first, and the worker has ended
        os.setpgid(pid, pid)


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a worker; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    sys.exit(main())
