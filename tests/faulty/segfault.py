"""A library writes where it may not."""

import faulthandler

from tests.faulty import Steps


def build(trial, data):
    return Segfault(trial)


class Segfault(Steps):
    def fail(self):
        faulthandler._sigsegv()
