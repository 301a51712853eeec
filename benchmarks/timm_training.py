"""Compare the tuned training step with the protocol of timm's `benchmark.py`, model by model.

    python benchmarks/timm_training.py [--case resnet50,32,64 …] [--engine compile+graph] [--pairs 5]

The peer is timm's protocol (huggingface/pytorch-image-models, `benchmark.py`, training): one resident random batch,
autocast BF16, channels_last, `cudnn.benchmark`, eager (its default), SGD with Nesterov momentum (fused, the faster
implementation), 10 warm-up and 40 timed steps. Our leg is the workbook's trial as a report runs it: the same model,
batch and precision, the real loader (shuffled, flipped and cropped images), after the correctness gate. Telemetry runs
beside both. Legs run in turns and in both orders. Each pair gives one ratio, and the interval is over pairs.

Prints preparation times separately: the first compile is cold, later ones use Inductor's cache. An aim is met if the
whole interval lies above it, missed if the whole interval lies below, undecided otherwise. The exit code is 1 if an aim
is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from labkit.data import open_data
from labkit.models import build as build_model
from labkit.telemetry.process import TelemetryProcess
from labkit.timing import CudaClock
from workbook.engines.state import free_memory, reset_compiler
from workbook.statistics import log_interval
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

WARM_UP_STEPS, TIMED_STEPS = 10, 40


class Case(NamedTuple):
    """A trained case. `aim` is the ratio to the peer's throughput that the tuned step should reach."""

    model: str
    image_px: int
    batch: int
    aim: float


# Aims: the ratios that a bare probe of captured and compiled steps reached on one H200.
CASES = (
    Case("resnet50", 32, 64, 8.2),
    Case("resnet50", 32, 256, 6.5),
    Case("resnet50", 32, 2048, 2.5),
    Case("vgg16", 32, 256, 1.6),
    Case("resnet152", 32, 256, 6.0),
    Case("resnet50", 224, 256, 1.44),
)


def main() -> int:
    """Measure and print every case. Return 1 if an aim was missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="*", default=[], help="MODEL,PIXELS,BATCH; all by default")
    parser.add_argument("--engine", choices=("graph", "compile+graph"), default="compile+graph")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    named = [case for case in CASES if f"{case.model},{case.image_px},{case.batch}" in options.case]
    missed = 0
    for case in named or CASES:
        missed += not compare(case, options.engine, options.pairs)
    return 1 if missed else 0


def compare(case: Case, engine: str, pairs: int) -> bool:
    """Measure and print one case. Return whether its aim was not missed."""
    data = open_data("synthetic32")
    trial = Trial(
        model=case.model,
        image_px=case.image_px,
        batch=case.batch,
        precision="bf16",
        engine=engine,
        memory_format="channels_last",
        optimizer="sgd_master",
        loader="device",
        augment=True,
        data_checksum=data.checksum,
    )
    reset_compiler()
    free_memory("cuda")
    peer = Peer(trial)
    ours = build_workload(trial, data)
    took = {}
    for name, prepare in ours.preparations():
        began = time.perf_counter()
        prepare()
        torch.cuda.synchronize()
        took[name] = time.perf_counter() - began
    ours.check()
    clock, ratios, rates, ours_rates = CudaClock(), [], [], []
    with TelemetryProcess([0], log=Path(os.devnull)) as telemetry:
        telemetry.ready()
        free_memory("cuda")  # collects garbage before the peer's steps
        for pair in range(pairs):
            leg = {}
            for name, step in (("peer", peer.step), ("ours", ours.step))[:: 1 if pair % 2 else -1]:
                clock.time_block(step, WARM_UP_STEPS)
                seconds, _ = clock.time_block(step, TIMED_STEPS)
                leg[name] = TIMED_STEPS * case.batch / seconds
            rates.append(leg["peer"])
            ours_rates.append(leg["ours"])
            ratios.append(leg["ours"] / leg["peer"])
    ratio, plain, tuned = log_interval(ratios), log_interval(rates), log_interval(ours_rates)
    assert ratio.low is not None and ratio.high is not None
    verdict = "met" if ratio.low >= case.aim else "MISSED" if ratio.high < case.aim else "undecided"
    gate: dict[str, Any] = ours.facts["gate"]
    print(
        f"{case.model} {case.image_px} px batch {case.batch}: {engine} {tuned.point:,.0f} images/s, timm's protocol "
        f"{plain.point:,.0f}: {ratio.point:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], n = {ratio.n}, aim {case.aim}x "
        f"{verdict}; "
        + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
        + f"; gate: loss {gate['loss_difference']:.1e}, change {gate['change_difference']:.3f}",
        flush=True,
    )
    return verdict != "MISSED"


class Peer:
    """timm's training protocol for one model."""

    def __init__(self, trial: Trial) -> None:
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = build_model(trial.model, image_px=trial.image_px)
            self.images = torch.randn(trial.batch, 3, trial.image_px, trial.image_px)
            self.labels = torch.randint(0, 1000, (trial.batch,))
        self.model = model.to(memory_format=torch.channels_last)
        self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, fused=True)

    def step(self) -> None:
        """Queue one training step on the resident batch."""
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


if __name__ == "__main__":
    sys.exit(main())
