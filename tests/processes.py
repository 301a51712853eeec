"""Which processes a test has started, and waiting for what they do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

PATIENCE_S = 150.0  # for what takes a second on a machine with nothing else to do; half of a test's own limit


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it comes true at all: how soon says more of the machine than of the code."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(found: psutil.Process) -> bool:
    try:
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers_now() -> list[psutil.Process]:
    """Every process that came from this test.

    Known by the lock file's name, which is each test's own and stands in its children's environment.
    """
    found = []
    for candidate in psutil.process_iter():
        try:
            if alive(candidate) and candidate.environ().get("LABKIT_LOCK") == os.environ["LABKIT_LOCK"]:
                found.append(candidate)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [candidate for candidate in found if candidate.pid != os.getpid()]


@contextmanager
def nothing_left_running() -> Iterator[None]:
    """What is done within ends all processes that it starts."""
    yield
    gone = eventually(lambda: not workers_now())
    left = workers_now()
    for one in left:
        one.kill()
    assert gone, f"left running: {left}"


def ranks_now() -> list[psutil.Process]:
    """Those of them that are ranks."""
    return [one for one in workers_now() if "labkit.run.rank" in _command(one)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
