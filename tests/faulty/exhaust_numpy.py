"""Really asks NumPy for more memory than any machine has."""

import numpy as np

from tests.faulty import Steps


def build(trial, data):
    return Exhaust(trial)


class Exhaust(Steps):
    def fail(self):
        np.empty(10**15)
