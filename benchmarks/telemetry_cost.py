"""Telemetry costs at most 0.5 % of throughput and under 2 % of one core.

    python benchmarks/telemetry_cost.py [--device cuda|cpu] [--pairs 60]

Trains VGG-16 at batch 64 on 32x32 images (the smallest training step of the workbook) and ResNet-50 at batch 64 (whose
step consists of launches). The telemetry process samples or is stopped, in turns and in both orders, in one run. Prints
the throughput ratio with over without telemetry, as a geometric mean with its 95 % interval over the pairs, and the
processor time of the sampling process. For each model, the bound holds if the whole interval lies above 99.5 %, is
broken if the whole interval lies below, and is undecided otherwise (more pairs are needed). The exit code is 0 only if
the bound holds for the smallest step, is broken nowhere, and the sampler takes less than 2 % of a core.

As in a report, a separate process listens to the telemetry, so that neither the readings nor their parsing run in the
timed process.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from labkit.data import open_data
from labkit.telemetry.process import TelemetryProcess
from labkit.timing import CudaClock, HostClock
from workbook.engines.state import quiet_collector
from workbook.statistics import log_interval
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

MODELS = ("vgg16", "resnet50")
BATCH = {"cuda": 64, "cpu": 8}
LEG_S = 0.5
LARGEST_COST, LARGEST_CPU_SHARE = 0.005, 0.02


def main() -> int:
    """Measure and print every model. Return 0 if the bounds hold, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=60)
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
        bound = 1 - LARGEST_COST
        verdict = "holds" if ratio.low >= bound else "is broken" if ratio.high < bound else "is undecided"
        print(f"    the bound of {LARGEST_COST:.1%} {verdict}")
        fine &= verdict != "is broken" and share < LARGEST_CPU_SHARE
        fine &= verdict == "holds" or model != MODELS[0]
    return 0 if fine else 1


def compare(model: str, device: str, pairs: int) -> Any:
    """Return the interval of the ratio with/without, the sampler's share of a core, and the seconds per step."""
    images = open_data("synthetic32", train_images=2_000, val_images=500)
    trial = Trial(model=model, batch=BATCH[device], device=device, data=images.name, data_checksum=images.checksum)
    workload = build_workload(trial, images)
    workload.check()
    quiet_collector()
    clock = CudaClock() if device == "cuda" else HostClock()
    for _ in range(5):
        seconds, _ = clock.time_block(workload.step, 20)
    steps = max(1, round(LEG_S / (seconds / 20)))
    ratios = []
    with Listener([0] if device == "cuda" else []) as telemetry:
        clock.time_block(workload.step, 3 * steps)
        for pair in range(pairs):
            rates = {}
            for sampled in (True, False) if pair % 2 else (False, True):
                telemetry.let_sample(sampled)
                clock.time_block(workload.step, max(steps // 10, 1))
                seconds, _ = clock.time_block(workload.step, steps)
                rates[sampled] = steps / seconds
                workload.read_loss()
            ratios.append(rates[True] / rates[False])
        telemetry.let_sample(True)
        clock.time_block(workload.step, 10 * steps)  # the sampler's share is measured over this uninterrupted block
    return log_interval(ratios), telemetry.cpu_share, seconds / steps


class Listener:
    """A child process that runs the telemetry process and listens to it until the `with` block ends."""

    cpu_share = 0.0

    def __init__(self, gpus: list[int]) -> None:
        command = [sys.executable, __file__, "--listen", *map(str, gpus)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Listener:
        assert self._child.stdout
        reply = self._child.stdout.readline().split()
        if reply[:1] != ["ready"]:
            raise SystemExit("the telemetry process did not start")
        self._sampler = psutil.Process(int(reply[1]))
        return self

    def let_sample(self, sampling: bool) -> None:
        """Continue or stop the sampling process. A stopped process costs nothing."""
        self._sampler.send_signal(signal.SIGCONT if sampling else signal.SIGSTOP)
        self._began = (time.monotonic(), sum(self._sampler.cpu_times()[:2]))

    def __exit__(self, *_: object) -> None:
        since, before = self._began
        self.cpu_share = (sum(self._sampler.cpu_times()[:2]) - before) / (time.monotonic() - since)
        self._child.communicate("")


def listen(gpus: list[int]) -> int:
    """Run the telemetry process until stdin closes."""
    with TelemetryProcess(gpus, log=Path("/dev/null")) as telemetry:
        print("ready" if telemetry.ready() else "lost", telemetry.pid, flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
