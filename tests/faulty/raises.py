"""An exception nobody expected, with bytes in its message that are no text."""

from tests.faulty import Steps


def build(trial, data):
    return Raises(trial)


class Raises(Steps):
    def fail(self):
        raise ValueError("this model has no such layer \udcff")
