"""How many threads a trial's work on the CPU takes: those it asks for, and afterwards the process's own again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from labkit import ranks
from labkit.errors import Unsupported
from labkit.hardware.cpu_limits import usable_threads
from labkit.trial import Trial


@contextmanager
def threads_of(trial: Trial) -> Iterator[None]:
    """Give PyTorch's operators the trial's threads; 0 leaves PyTorch its own number.

    Engines of other libraries read `trial.threads` themselves. Several processes on one CPU share its threads evenly.
    Unsupported for more threads than the process may run at once: they would take turns, which says nothing of a
    machine that has so many.
    """
    together, may = ranks.team(), usable_threads()
    wanted = trial.threads
    if not wanted and together is not None and trial.device == "cpu":
        wanted = max(1, may // max(1, together.size // trial.nodes))
    if not wanted:
        yield
        return
    if wanted > may:
        raise Unsupported(
            f"the trial asks for {trial.threads} threads, and this process may run {may} at once (processors, affinity "
            f"mask and control group taken together)"
        )
    if trial.framework not in ("torch", "keras-torch"):
        raise Unsupported(f"this version sets the threads of PyTorch and OpenVINO, not of {trial.framework}")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
