"""One process of a pass: runs its trials one after the other and reports each when it ends.

The runner starts it as `python -m workbook.runner.worker`, or `workbook.forkserver` forks it. The job is one JSON line
on stdin, which then stays open. When stdin closes, the runner is gone and this process ends. The runner keeps stderr as
a log.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from io import FileIO

from workbook.lifetime import end_after
from workbook.runner.execution import run
from workbook.runner.framework import said_of
from workbook.runner.preparing import Data
from workbook.runner.protocol import Events, Pass, startup_s
from workbook.trials.trial import trial_from_dict


def main() -> int:
    """Run the job that stdin brings. Return 0, or 3 after a trial that crashed or ran out of memory."""
    faulthandler.enable()
    events = Events()
    job = json.loads(sys.stdin.readline())
    # Not `sys.stdin`: a forked process (a DataLoader's worker) closes its copy, and would wait for the lock of a read.
    end_after(FileIO(0, closefd=False).read)
    events.send(event="hello", **said_of(job["trials"]), startup_s=startup_s(job))
    of_pass = Pass.model_validate(job["pass"])
    data = Data(of_pass.weights, of_pass.network)
    for values, gate_passed in zip(job["trials"], job["gate_passed"], strict=True):
        trial = trial_from_dict(values)
        events.send(event="start", key=trial.key)
        outcome = run(trial, of_pass, data, events, gate_passed=gate_passed)
        events.send(event="done", key=trial.key, **outcome)
        if outcome["status"] in ("oom", "crashed"):
            return 3  # the remains of such a trial must not affect the next: the runner starts a fresh process
    return 0


if __name__ == "__main__":
    sys.exit(main())
