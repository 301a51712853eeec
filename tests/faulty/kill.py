"""Somebody kills the process."""

import os
import signal

from tests.faulty import Steps


def build(trial, data):
    return Kill(trial)


class Kill(Steps):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)
