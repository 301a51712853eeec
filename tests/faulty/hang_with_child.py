"""A step that never ends and has started a process of its own."""

import subprocess
import sys
import time

from tests.faulty import Steps


def build(trial, data):
    return HangWithChild(trial)


class HangWithChild(Steps):
    def fail(self):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)
