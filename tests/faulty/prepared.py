"""Does more before its first step, in an order of its own, and says what its memory is; nothing goes wrong."""

import time

from tests.faulty import Steps


def build(trial, data):
    return Prepared(trial)


class Prepared(Steps):
    def __init__(self, trial):
        super().__init__(trial)
        self.facts |= {"done": [], "memory_bytes": 12345, "memory_method": "as the workload says"}

    def preparations(self):
        for name in ("reference", "compile", "capture"):
            yield name, lambda name=name: self.prepare(name)

    def prepare(self, name):
        """Take a moment."""
        time.sleep(0.01)
        self.facts["done"].append(name)

    def check(self):
        self.facts["done"].append("check")
        super().check()
