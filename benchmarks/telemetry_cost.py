"""Telemetry costs at most 0.5 % of throughput and under 2 % of one core.

    python benchmarks/telemetry_cost.py [--device cuda|cpu] [--pairs 12]

Trains VGG-16 at batch 64 on 32x32 images (the smallest training step of the workbook) and ResNet-50 at batch 64 (whose
step is nothing but launches) with the telemetry process sampling and without it, in turns and in both orders, in one
run. Prints the throughput ratio with over without as a geometric mean with its 95 % interval over the pairs, and the
processor time that the sampling process took. Ends with exit code 1 when a bound is broken: the interval lies wholly
below 99.5 %, or the sampler took 2 % of a core or more.

The telemetry is listened to by a process of its own, as in a report, so that neither its readings nor their parsing run
in the timed process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from labkit.data import open_data
from labkit.measure import CudaClock, HostClock
from labkit.statistics import log_interval
from labkit.telemetry.process import TelemetryProcess
from labkit.trial import Trial
from labkit.workloads import build_workload

MODELS = ("vgg16", "resnet50")
BATCH = {"cuda": 64, "cpu": 8}
LEG_S = 3.0
LARGEST_COST, LARGEST_CPU_SHARE = 0.005, 0.02


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--listen", metavar="GPU", nargs="*", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.listen is not None:
        return listen(options.listen)
    fine = True
    for model in MODELS:
        ratio, share, step_s = compare(model, options.device, options.pairs)
        assert ratio.low is not None and ratio.high is not None
        print(
            f"{model} batch {BATCH[options.device]}, step {step_s * 1e3:.2f} ms: with/without telemetry "
            f"{ratio.point:.4f} [{ratio.low:.4f}, {ratio.high:.4f}], n = {ratio.n}; sampler {share:.2%} of one core"
        )
        fine &= ratio.high >= 1 - LARGEST_COST and share < LARGEST_CPU_SHARE
    return 0 if fine else 1


def compare(model: str, device: str, pairs: int) -> Any:
    """(interval of the ratio with/without, mean processor share of the sampler, seconds a step)."""
    images = open_data("synthetic32", train_images=2_000, val_images=500)
    trial = Trial(model=model, batch=BATCH[device], device=device, data=images.name, data_checksum=images.checksum)
    workload = build_workload(trial, images)
    workload.check()
    clock = CudaClock() if device == "cuda" else HostClock()
    for _ in range(3):
        seconds, _ = clock.time_block(workload.step, 10)
    steps = max(1, round(LEG_S / (seconds / 10)))
    ratios, shares = [], []
    for pair in range(pairs):
        rates = {}
        for sampled in (True, False) if pair % 2 else (False, True):
            with Listener([0] if device == "cuda" else []) if sampled else Nothing() as listener:
                clock.time_block(workload.step, max(steps // 10, 1))
                seconds, _ = clock.time_block(workload.step, steps)
                rates[sampled] = steps / seconds
                workload.read_loss()
            if sampled:
                shares.append(listener.cpu_share)
        ratios.append(rates[True] / rates[False])
    return log_interval(ratios), sum(shares) / len(shares), seconds / steps


class Listener:
    """A child that runs the telemetry process and listens to it, until it is left."""

    cpu_share = 0.0

    def __init__(self, gpus: list[int]) -> None:
        command = [sys.executable, __file__, "--listen", *map(str, gpus)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Listener:
        assert self._child.stdout
        if self._child.stdout.readline().strip() != "ready":
            raise SystemExit("the telemetry process did not start")
        return self

    def __exit__(self, *_: object) -> None:
        said, _ = self._child.communicate("")
        self.cpu_share = float(said)


class Nothing:
    """No telemetry."""

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def listen(gpus: list[int]) -> int:
    """Run the telemetry process until stdin closes; say what it took."""
    with TelemetryProcess(gpus, log=Path("/dev/null")) as telemetry:
        print("ready" if telemetry.ready() else "lost", flush=True)
        began = time.monotonic()
        sys.stdin.read()
        print(telemetry.recording(began, time.monotonic()).cpu_share)
    return 0


if __name__ == "__main__":
    sys.exit(main())
