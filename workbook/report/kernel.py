"""The kernel of a notebook: how it begins, and how it is forked from a process that has imported what notebooks use.

A process of a rendering forks its kernel before papermill starts threads, so the kernel begins with all that the
process has imported and read. It waits until Jupyter's kernel manager launches it, with an environment and a folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

INLINE = "module://matplotlib_inline.backend_inline"  # what ipykernel sets, unless the user has set another backend
LOG_VARIABLE = "LABKIT_KERNEL_LOG"  # environment variable with the file for the kernel's own messages


def run() -> None:
    """Be a kernel until it is shut down, with the connection file that the command line names.

    The kernel's own stderr is not part of a cell's output: an interrupted kernel writes tracebacks there.
    """
    if log := os.environ.get(LOG_VARIABLE):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)
    from ipykernel import iostream, kernelapp

    # ipykernel takes the output of forked processes on a TCP port of the loopback. No notebook forks one that prints.
    iostream.IOPubThread._setup_pipe_in = lambda thread: setattr(thread, "_pipe_flag", False)  # type: ignore[method-assign]
    kernelapp.launch_new_instance()


class ForkedKernel:
    """A kernel forked from this process, with the methods of `subprocess.Popen` that Jupyter's provisioner calls."""

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _wait_and_run(reader)
        os.close(reader)

    def launch(self, command: list[str], environment: dict[str, str], folder: str) -> None:
        """Let the kernel begin in a folder. Of the command, only `-f` and what follows it reach the kernel."""
        about = {"options": command[command.index("-f") :], "environment": environment, "folder": folder}
        with os.fdopen(self._writer, "w", encoding="utf-8") as file:
            json.dump(about, file)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Return the exit code, or None while the kernel runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int | None:
        """Return the exit code when the kernel has ended."""
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        """Send a signal unless the kernel has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def managing(kernel: ForkedKernel) -> type:
    """Return a kernel manager of Jupyter that launches a forked kernel, and starts no process."""
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        async def _async_launch_kernel(self, kernel_cmd: list[str], **kw: Any) -> None:
            provisioner: Any = self.provisioner
            kernel.launch(kernel_cmd, kw["env"], kw.get("cwd") or str(Path.cwd()))
            provisioner.process, provisioner.pid = kernel, kernel.pid
            self._reconcile_connection_info(provisioner.connection_info)

        _launch_kernel = _async_launch_kernel

    return Manager


def _wait_and_run(reader: int) -> NoReturn:
    """Become a kernel once the description of the launch has come; end without it, as when the parent has ended."""
    try:
        parent = os.getppid()
        os.setsid()  # signals of the terminal are the parent's to handle
        os.dup2(reader, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with os.fdopen(3, encoding="utf-8") as file:
            about = json.loads(file.read() or "null")
        if about:
            import matplotlib
            import pandas

            os.environ.clear()
            os.environ.update(about["environment"])
            os.chdir(about["folder"])
            matplotlib.rcParams["backend"] = INLINE  # which an imported matplotlib no longer reads from the environment
            pandas.set_option("display.max_columns", 20)  # as in a kernel: pandas was imported outside of one
            sys.path.insert(0, "")  # as of a Python that runs a command
            sys.argv = ["kernel", *about["options"], f"--IPKernelApp.parent_handle={parent}"]
            run()
    finally:
        os._exit(0)
