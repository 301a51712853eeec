"""Applies a trial's host setting to the process around its loop, and undoes it afterwards.

The autograd engine has a thread per device, which runs the backward pass while the calling thread waits. It can instead
run on the calling thread. The operating system moves threads between all cores that the process may use. They can
instead be bound to two cores, one for each of these two threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from labkit.errors import Unsupported
from labkit.hardware.cpu_limits import separate_cores, usable_threads
from labkit.trial import Trial

CORES = 2
THREADS = Path("/proc/self/task")  # Linux: a folder per thread of this process


@contextmanager
def host_setting_of(trial: Trial) -> Iterator[dict[str, Any]]:
    """Apply the trial's host setting within the context, and yield facts for its record.

    `set_modes` applies `no_benchmark`, because it sets cuDNN's modes while the workload is built. Raise Unsupported for
    a trial that is no eager training of PyTorch in one process, and where a process cannot choose two cores.
    """
    if trial.host_setting == "default":
        yield {}
        return
    if reason := _why_unsupported(trial):
        raise Unsupported(reason)
    asked = trial.host_setting.split("+")
    facts: dict[str, Any] = {}
    with ExitStack() as applied:
        if "calling_thread" in asked:
            from torch.autograd.grad_mode import set_multithreading_enabled

            applied.enter_context(set_multithreading_enabled(False))  # of the calling thread alone
        if "two_cores" in asked:
            facts["bound_to_processors"] = applied.enter_context(two_cores())
        yield facts


def _why_unsupported(trial: Trial) -> str | None:
    """Return why a trial cannot have a host setting on any machine; None if it can."""
    setting = f"the host setting {trial.host_setting}"
    if trial.workload != "train":
        return f"{setting} is for training, not for the {trial.workload} workload"
    if trial.framework != "torch":
        return f"{setting} is for PyTorch's own loop, not for {trial.framework}"
    if trial.engine != "eager":
        return f"{setting} is for the engine eager, in which the host launches each kernel, not for {trial.engine}"
    if trial.processes > 1:
        return f"{setting} is for one process, and the trial has {trial.processes}"
    return None


@contextmanager
def two_cores() -> Iterator[list[int]]:
    """Bind all threads of this process to two cores within the context, and yield the numbers of their processors.

    They are the first two cores that this process may use. Afterwards each thread has its former processors again. A
    thread that began meanwhile then has those of the calling thread. Raise Unsupported with fewer than two cores, and
    where the operating system binds no threads.
    """
    if not hasattr(os, "sched_setaffinity") or not THREADS.is_dir():
        raise Unsupported("only Linux binds the threads of a process to cores")
    cores = separate_cores()[:CORES]
    if (usable := min(len(cores), usable_threads())) < CORES:
        raise Unsupported(f"the trial needs {CORES} cores, and this process may use {usable}")
    own = os.sched_getaffinity(0)
    former: dict[int, set[int]] = {}
    try:
        while new := _threads() - set(former):  # a thread that is not bound yet may start another
            for thread in new:
                former[thread] = _bound(thread, cores) or own
        yield cores
    finally:
        for thread in _threads():
            _bound(thread, former.get(thread, own))


def _bound(thread: int, processors: Iterable[int]) -> set[int] | None:
    """Bind a thread to processors. Return its former processors; None if it has ended."""
    try:
        former = os.sched_getaffinity(thread)
        os.sched_setaffinity(thread, processors)
    except ProcessLookupError:
        return None
    except OSError as error:
        raise Unsupported(f"this process may not choose the cores of its threads ({error})") from error
    return former


def _threads() -> set[int]:
    """Return the identifiers of this process's threads."""
    return {int(folder.name) for folder in THREADS.iterdir()}
