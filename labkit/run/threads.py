"""How many threads a trial's work on the CPU takes: those it asks for, and afterwards the process's own again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labkit.errors import Unsupported
from labkit.host import usable_threads
from labkit.trial import Trial


@contextmanager
def threads_of(trial: Trial) -> Iterator[None]:
    """Give PyTorch's operators the trial's threads; 0 leaves PyTorch its own number.

    Engines of other libraries read `trial.threads` themselves. Unsupported for more threads than the process may run
    at once: they would take turns, which says nothing of a machine that has so many.
    """
    if not trial.threads:
        yield
        return
    may = usable_threads()
    if trial.threads > may:
        raise Unsupported(
            f"the trial asks for {trial.threads} threads, and this process may run {may} at once (processors, affinity "
            f"mask and control group taken together)"
        )
    if trial.framework != "torch":
        raise Unsupported(f"this version sets the threads of PyTorch and OpenVINO, not of {trial.framework}")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(trial.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
