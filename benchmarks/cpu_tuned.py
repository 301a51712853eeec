"""On a CPU, the tuned step is never slower than the baseline step.

    python benchmarks/cpu_tuned.py [--pairs 8]

Trains each model of the CPU's studies with the papers' baseline loop and with the tuned recipe of a CPU, in turns, in
one run, after the gate. Prints tuned over baseline images/s with the 95 % interval over the pairs. The exit code is 1
if a whole interval lies below 1.
"""

from __future__ import annotations

import argparse
import sys

from labkit.data import DataSet, open_data
from labkit.timing import HostClock
from workbook.engines.state import quiet_collector
from workbook.statistics import Interval, log_interval
from workbook.trials.recipes import FUSED_ON_CPU, PLAIN
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.train import TrainWorkload

CASES = (("resnet50", 16), ("resnet50", 64), ("resnet152", 16), ("vgg16", 16))
LEG_S = 1.0


def main() -> int:
    """Measure and print every case. Return 1 if one is slower, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    pairs: int = parser.parse_args().pairs
    slower = 0
    for model, batch in CASES:
        ratio = compare(model, batch, pairs)
        assert ratio.low is not None and ratio.high is not None
        verdict = "is faster" if ratio.low > 1 else "is SLOWER" if ratio.high < 1 else "is undecided"
        slower += ratio.high < 1
        print(
            f"{model} batch {batch}: tuned over plain {ratio.point:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}], "
            f"n = {ratio.n}: {verdict}",
            flush=True,
        )
    return 1 if slower else 0


def compare(model: str, batch: int, pairs: int) -> Interval:
    """Return the ratio of tuned to baseline images/s over the pairs, which run in both orders."""
    data, clock = open_data("synthetic32"), HostClock()
    plain, tuned = (ready(Trial(model=model, batch=batch, device="cpu", **r), data) for r in (PLAIN, FUSED_ON_CPU))
    quiet_collector()
    first, _ = clock.time_block(plain.step, 2)
    steps = max(1, round(LEG_S / (first / 2)))
    ratios = []
    for pair in range(pairs):
        legs = [("plain", plain.step), ("tuned", tuned.step)]
        took = {name: clock.time_block(step, steps)[0] for name, step in (legs if pair % 2 else legs[::-1])}
        ratios.append(took["plain"] / took["tuned"])
    return log_interval(ratios)


def ready(trial: Trial, data: DataSet) -> TrainWorkload:
    """Return a workload after its gate and its first steps."""
    workload = build_workload(trial, data)
    assert isinstance(workload, TrainWorkload)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    workload.step()
    return workload


if __name__ == "__main__":
    sys.exit(main())
