"""The process is killed and leaves a forked child behind, which holds every pipe open that the process had."""

import os
import signal
import time

from tests.faulty import Steps


def build(trial, data):
    return KillWithFork(trial)


class KillWithFork(Steps):
    def fail(self):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
