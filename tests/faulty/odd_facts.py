"""Says something of itself that JSON has no word for."""

from tests.faulty import Steps


def build(trial, data):
    workload = Steps(trial)
    workload.facts["share"] = float("nan")
    return workload
