"""Nothing goes wrong."""

from tests.faulty import Steps


def build(trial, data):
    return Steps(trial)
