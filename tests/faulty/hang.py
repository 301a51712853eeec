"""A step that never ends."""

import time

from tests.faulty import Steps


def build(trial, data):
    return Hang(trial)


class Hang(Steps):
    def fail(self):
        time.sleep(600)
