"""A few steps of one trial for a counter of kernels, started as `python -m labkit.run.few_steps TRIAL PASS`.

TRIAL is the trial's fields as JSON. The trial is built and checked as for timing; then CUDA's profiler is told to
start, one step is taken, and it is told to stop. Nothing is timed here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from labkit.run.preparing import Data, prepared_workload
from labkit.run.threads import threads_of
from labkit.trial import Trial, trial_from_dict

BEFORE = 3  # steps between the gate and the one that counts


def command_for(trial: Trial, pass_number: int) -> list[str]:
    """What starts such a process."""
    return [sys.executable, "-m", "labkit.run.few_steps", json.dumps(trial.as_dict()), str(pass_number)]


def main(arguments: Sequence[str]) -> int:
    """Take the steps."""
    import torch

    trial = trial_from_dict(json.loads(arguments[0]))
    with threads_of(trial):
        workload, _ = prepared_workload(trial, int(arguments[1]), Data(), lambda _phase: None, lambda _name: None)
        for _ in range(BEFORE):
            workload.step()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()  # type: ignore[no-untyped-call, unused-ignore]
        workload.step()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call, unused-ignore]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
