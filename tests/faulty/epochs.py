"""Trains whole epochs that take no time: 10 images in batches of 4, a loss that says which step it is of."""

from labkit.workloads import Scores
from tests.faulty import Steps


def build(trial, data):
    workload = Epochs(trial)
    workload.facts["seed_of_build"] = trial.seed
    return workload


class Epochs(Steps):
    fails_at = -1

    def read_loss(self):
        return float(self._steps)

    def restart(self):
        self._steps = 0

    def steps_of_epoch(self, epoch):
        return (3, 2)[epoch % 2]

    def learning_rate(self):
        return 1 / self._steps

    def evaluate(self):
        return Scores(loss=None, top1=0.25, top5=0.5, images=8)
