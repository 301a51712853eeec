"""What the kernel does when memory runs out, without running out: it counts a kill in a file like /proc/vmstat."""

import os
import signal
from pathlib import Path

from tests.faulty import Steps


def build(trial, data):
    return ExhaustKernel(trial)


class ExhaustKernel(Steps):
    def fail(self):
        Path(os.environ["LABKIT_TEST_VMSTAT"]).write_text("oom_kill 8\n")
        os.kill(os.getpid(), signal.SIGKILL)
