"""The real loader costs at most 2 % of a training step.

    python benchmarks/loader_cost.py [--device cuda|cpu] [--pairs 12]

Trains with the loader (a true shuffle, gather, random crop and flip, normalisation) and with one resident batch, in
turns, in one run, for every model and batch of the batch-size study, baseline and captured. Prints the share of the
step that the loader adds, with its 95 % interval over the pairs. The exit code is 1 if a whole interval lies above the
bound. The baseline loop of a small batch scatters by more than the bound itself, and its verdict is then `undecided`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch

from labkit.data import open_data
from labkit.timing import CudaClock, HostClock
from workbook.engines.state import free_memory, quiet_collector
from workbook.statistics import log_interval
from workbook.trials.recipes import recipes
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

BOUND = 0.02
LEG_S = 0.1
ENGINES = {"cuda": ("plain", "graph"), "cpu": ("plain",)}
COMPILED = (("resnet50", 64), ("resnet50", 256), ("vgg16", 256))  # cases also measured with the engine compile+graph
SIZES = {
    "cuda": [("resnet50", (16, 64, 256, 2048, 8192)), *((m, (64, 256)) for m in ("resnet152", "vgg16", "vgg19"))],
    "cpu": [("resnet50", (16, 64)), ("vgg16", (16,))],
}


def main() -> int:
    """Measure and print every case. Return 1 if a bound is broken, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    data = open_data("synthetic32")
    by_name = recipes(options.device)
    broken = 0
    for model, batches in SIZES[options.device]:
        for batch in batches:
            compiled = options.device == "cuda" and (model, batch) in COMPILED
            for name in (*ENGINES[options.device], *(["compile+graph"] if compiled else [])):
                recipe = by_name[name]
                trial = Trial(model=model, batch=batch, device=options.device, augment=True, **recipe)
                share = added_share(trial, data, options.pairs)
                low, high = share
                verdict = "holds" if high <= BOUND else "is broken" if low > BOUND else "is undecided"
                broken += verdict == "is broken"
                print(
                    f"{model} batch {batch} {name}: the loader adds {low:.2%} to {high:.2%} of the step, "
                    f"n = {options.pairs}: {BOUND:.0%} {verdict}",
                    flush=True,
                )
    return 1 if broken else 0


def added_share(trial: Trial, data: Any, pairs: int) -> tuple[float, float]:
    """Return the interval of the loader's cost as a share of the step with the loader."""
    free_memory(trial.device)
    clock = CudaClock() if trial.device == "cuda" else HostClock()
    real, still = build_workload(trial, data), build_workload(trial, data)
    _hold_still(still)
    for workload in (real, still):
        for _, prepare in workload.preparations():
            prepare()
        if "graph" not in trial.engine:
            workload.step()
    quiet_collector()
    first, _ = clock.time_block(real.step, 3)
    steps = max(1, round(LEG_S / (first / 3)))
    ratios = []
    for pair in range(pairs):
        order: list[tuple[str, Callable[[], object]]] = [("with", real.step), ("without", still.step)]
        times = {name: clock.time_block(step, steps)[0] for name, step in (order if pair % 2 else order[::-1])}
        ratios.append(times["without"] / times["with"])
    ratio = log_interval(ratios)
    assert ratio.low is not None and ratio.high is not None
    return 1 - ratio.high, 1 - ratio.low


def _hold_still(workload: Any) -> None:
    """Change a workload so that every step trains on the first batch."""
    run = workload.run
    if hasattr(run, "batch"):  # a captured step, whose static batch is filled once
        run.peek()
        run.batch.load = run.batch.feed = lambda: None
    else:
        first = run.peek()
        run.loader.next_batch = lambda: first


if __name__ == "__main__":
    sys.exit(main())
