"""Really asks PyTorch for more memory than any machine has (this one imports torch)."""

from tests.faulty import Steps


def build(trial, data):
    return Exhaust(trial)


class Exhaust(Steps):
    def fail(self):
        import torch

        torch.empty(10**15)
