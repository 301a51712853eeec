"""Ends a process when the process that it works for is gone, whatever the cause."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_after(parent.join)
