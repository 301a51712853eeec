"""Ends a process when it is asked to, or when the process that it works for is gone, with all that it has started."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

TYPE_CHECKING = False  # until `exit_on_request` is called, an interruption prints a traceback
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130  # exit code
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNWINDING_S = 1.0  # in which an interrupted command completes what it writes and ends its processes
WITHOUT_CHILDREN_S = 0.5  # in which it removes its temporary files after these processes were killed
WORDS = b"\nlabkit: interrupted. Finished measurements are kept; the same command (without FORCE=1) continues.\n"

_requested, _said = False, threading.Lock()


def exit_on_request() -> None:
    """Exit in one sentence, from now on, at each of REQUESTS: a command that is being imported has begun nothing."""
    _handle_requests(lambda *_: _exit())


def unwind_on_request() -> None:
    """Raise KeyboardInterrupt, from now on, at the first of REQUESTS, and limit the time that this process goes on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # Python writes to it at once, also while the main thread runs C code and can't raise anything.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _handle_requests(_unwind)
    threading.Thread(target=_limit_unwinding, args=(reader,), daemon=True).start()
    # The function that is registered first runs last. What Python would do after it takes up to a second.
    atexit.register(_exit_soon)


def requested() -> bool:
    """Return whether one of REQUESTS has begun to end this process."""
    return _requested


def exit_interrupted() -> NoReturn:
    """Kill all processes that this one has started, and exit in one sentence."""
    end_children()
    _say()
    sys.exit(INTERRUPTED)


def end_children() -> None:
    """Kill all processes that this one has started, and those that they have started.

    Multiprocessing's tracker stays: it removes what the killed have left in shared memory, and ends by itself.
    """
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            if "multiprocessing.resource_tracker" not in " ".join(child.cmdline()):
                child.kill()
        except psutil.Error:
            continue  # it has ended


def end_after(wait: Callable[[], object]) -> None:
    """Start a thread that calls `wait` and then kills this process; with its children if it leads its group."""

    def end() -> None:
        try:
            wait()
        except OSError:
            pass  # the machine at the other end of a connection is gone
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def end_with_parent() -> None:
    """End this process of a pool when its parent ends. An interrupt is the parent's to handle."""
    import multiprocessing

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_after(parent.join)


def _handle_requests(handler: Callable[..., object]) -> None:
    """Install a handler. Ignored signals stay so: scripts ignore SIGINT in what they start with `&`, nohup SIGHUP."""
    for number in REQUESTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _unwind(*_: object) -> None:
    global _requested
    if not _requested:  # a group's signal comes twice: make passes it on
        _requested = True
        raise KeyboardInterrupt


def _limit_unwinding(reader: int) -> None:
    """Wait for a request and limit the time after it. JupyterLab has handlers of its own for the same signals."""
    while signal.getsignal(os.read(reader, 1)[0]) is not _unwind:
        pass
    time.sleep(UNWINDING_S)
    end_children()
    time.sleep(WITHOUT_CHILDREN_S)
    _exit()


def _exit_soon() -> None:
    if _requested:
        try:
            sys.stdout.flush()
        finally:
            os._exit(INTERRUPTED)


def _exit() -> NoReturn:
    signal.alarm(1)  # which kills this process if nobody reads the pipe that the sentence goes to
    _say()
    os._exit(INTERRUPTED)


def _say() -> None:
    if _said.acquire(blocking=False):
        try:
            os.write(2, WORDS)
        except OSError:
            pass  # the terminal is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for what libraries say of processes that were killed
