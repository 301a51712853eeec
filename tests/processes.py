"""The processes that a test has started, and waiting for conditions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from workbook.forkserver import NAME

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("torch", "tensorflow", "jax", "keras", "matplotlib")

PATIENCE_S = 400.0  # for conditions that take a second on an idle machine; half of a test's time limit


def eventually(condition: Callable[[], bool]) -> bool:
    """Return whether `condition` becomes true within PATIENCE_S. The time depends mostly on the machine."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers_now() -> list[psutil.Process]:
    """Return every live process that this test has started, except for its own.

    Each test has its own lock file. A process belongs to the test if its environment names that file. A forked worker
    has the environment of its parent, which an earlier test may have started.
    """
    own = processes_with_lock(os.environ["LABKIT_LOCK"])
    return own + [child for child in psutil.Process().children(recursive=True) if is_forked(child) and child not in own]


def is_forked(process: psutil.Process) -> bool:
    """Return whether a process is a forked worker that lives, or a child of one."""
    try:
        return process.name() == NAME and alive(process)
    except psutil.NoSuchProcess:
        return False


def processes_with_lock(lock: str) -> list[psutil.Process]:
    """Return every live process, except for this one, whose environment names the lock file `lock`."""
    processes = []
    for candidate in psutil.process_iter():
        try:
            if alive(candidate) and candidate.environ().get("LABKIT_LOCK") == lock:
                processes.append(candidate)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return [candidate for candidate in processes if candidate.pid != os.getpid() and not forks_for_us(candidate)]


def forks_for_us(process: psutil.Process) -> bool:
    """Return whether a process forks the workers of this one. It ends when this one does, or with its run."""
    try:
        of_us = process.ppid() == os.getpid()
        return of_us and "workbook.forkserver" in command(process) and process.name() != NAME
    except psutil.NoSuchProcess:
        return False


@contextmanager
def nothing_left_running() -> Iterator[None]:
    """Assert that the body of the `with` statement ends all processes that it starts. Kill any that are left."""
    yield
    gone = eventually(lambda: not workers_now())
    left = workers_now()
    for process in left:
        process.kill()
    assert gone, f"left running: {left}"


def ranks_now() -> list[psutil.Process]:
    """Return those processes of `workers_now` that are ranks."""
    return [process for process in workers_now() if "workbook.runner.rank" in command(process)]


def command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def frameworks_after(*modules: str, then: str = "") -> list[str]:
    """Return the FRAMEWORKS that a new process has imported after these modules and the statement `then`."""
    script = f"import json, sys, {', '.join(modules)}\n{then}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in FRAMEWORKS if name in json.loads(done.stdout)]


def result_of(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a module of the tests in a new process with one thread of TensorFlow. Return the JSON of its last line."""
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result
