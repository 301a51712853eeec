"""Sets the number of CPU threads that a trial asks for, and restores the process's number afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from workbook import ranks
from workbook.errors import Unsupported
from workbook.hardware.limits import usable_threads
from workbook.trials.trial import Trial


@contextmanager
def threads_of(trial: Trial) -> Iterator[None]:
    """Set PyTorch's threads to the trial's number within the context; 0 leaves PyTorch's own number.

    PyTorch does not know a control group's quota, so its own number is lowered to the threads that can run at once.
    Engines of other libraries read `trial.threads` themselves. Several processes on one CPU share its threads evenly.
    Raise Unsupported for more threads than this process may run at once, because they would take turns on fewer
    processors.
    """
    team, usable = ranks.team(), usable_threads()
    wanted = trial.threads
    if not wanted and team is not None and trial.device == "cpu":
        wanted = max(1, usable // max(1, team.size // trial.nodes))
    on_torch = trial.framework in ("torch", "keras-torch")
    if not wanted and on_torch and "torch" in sys.modules and sys.modules["torch"].get_num_threads() > usable:
        wanted = usable
    if not wanted or not on_torch:
        yield
        return
    if wanted > usable:
        raise Unsupported(
            f"the configuration asks for {trial.threads} threads, and this process may run {usable} at once (the "
            f"least that processors, affinity mask and control group allow)"
        )
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
