"""Results that are wrong: the gate refuses them, and no step is ever timed."""

from labkit.errors import GateError
from tests.faulty import Steps


def build(trial, data):
    return Gate(trial)


class Gate(Steps):
    def check(self):
        raise GateError("the loss is nan")

    def step(self):
        raise AssertionError("a trial that failed its gate was timed")
