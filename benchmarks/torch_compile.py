"""labkit's engines `eager` and `compile` are not slower than the loop of PyTorch's examples with the same compiler.

    python benchmarks/torch_compile.py [--device cpu] [--model resnet50] [--batch 256] [--precision bf16] [--pairs 6]
                                       [--engine compile+graph]

Both loops train the network on 32x32 images on one device, in turns, in one run. labkit uses its loader. The peer uses
`torch.compile(model)` (or eager), autocast, SGD and one resident batch. Prints our images/s over the peer's with the
95 % interval over the pairs. The peer reads no images and sums no losses, for which labkit may take 5 %. The exit code
is 1 if a whole interval lies below 0.95.

On a GPU in BF16, the tuned engine `compile+graph` is also compared with PyTorch's own way to capture,
`torch.compile(model, mode="reduce-overhead")`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from labkit.data import open_data
from labkit.models import build
from labkit.timing import HostClock
from workbook.engines.precision import AUTOCAST, set_modes
from workbook.engines.state import quiet_collector
from workbook.statistics import log_interval
from workbook.trials.recipes import COMPILED, MOMENTUM, WEIGHT_DECAY
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

LEG_S = 2.0
LEAST_STEPS = 4
BOUND = 0.95


def main() -> int:
    """Measure and print every engine. Return 1 if one is slower than its bound, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--engine", choices=("eager", "compile", "compile+graph"), help="measure this engine only")
    asked = parser.parse_args()
    alike = {"model": asked.model, "device": asked.device, "batch": asked.batch}
    plain = {
        "precision": asked.precision,
        "memory_format": "channels_last" if asked.precision == "bf16" else "contiguous",
        "loader": "device" if asked.device == "cuda" else "indexed",
    }
    trials = [Trial(**alike, **plain, engine=engine) for engine in ("eager", "compile")]
    if asked.device == "cuda" and asked.precision == "bf16":
        trials.append(Trial(**alike, **COMPILED))
    if asked.engine not in (None, *(trial.engine for trial in trials)):
        parser.error("compile+graph runs on a GPU in BF16: leave --device and --precision at their defaults")
    slower = [compare(trial, asked.pairs) for trial in trials if asked.engine in (None, trial.engine)]
    return 1 if any(slower) else 0


def compare(trial: Trial, pairs: int) -> bool:
    """Measure and print one trial, with pairs in both orders. Return whether labkit is slower than the bound."""
    workload: Any = build_workload(trial, open_data("synthetic32", train_images=5000, val_images=10))
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    clock = HostClock(torch.cuda.synchronize if trial.device == "cuda" else lambda: None)
    legs = {"ours": workload.step, "peer": published(trial)}
    for step in legs.values():
        clock.time_block(step, LEAST_STEPS)
    seconds, _ = clock.time_block(legs["ours"], LEAST_STEPS)
    steps = max(LEAST_STEPS, round(LEG_S / (seconds / LEAST_STEPS)))
    quiet_collector()
    ratios, ours_s = [], 0.0
    for pair in range(pairs):
        order = list(legs) if pair % 2 else list(legs)[::-1]
        took = {name: clock.time_block(legs[name], steps)[0] for name in order}
        ratios.append(took["peer"] / took["ours"])
        ours_s += took["ours"]
    ratio = log_interval(ratios)
    assert ratio.low is not None and ratio.high is not None
    verdict = "is SLOWER" if ratio.high < BOUND else "keeps its bound" if ratio.low >= BOUND else "is undecided"
    print(
        f"{trial.engine}, {trial.model} batch {trial.batch} {trial.precision}, {trial.device}: "
        f"{pairs * steps * trial.batch / ours_s:,.1f} images/s, over PyTorch's own way {ratio.point:.3f}x "
        f"[{ratio.low:.3f}, {ratio.high:.3f}], n = {ratio.n}: {verdict}",
        flush=True,
    )
    return ratio.high < BOUND


def published(trial: Trial) -> Callable[[], object]:
    """Return a step like PyTorch's tutorials, on one batch of noise: FP32 weights, half precision by autocast only.

    labkit may keep weights in BF16 with a copy in FP32 (`sgd_master`), which the tutorials do not have.
    """
    set_modes(trial)
    form: Any = torch.channels_last if trial.memory_format == "channels_last" else torch.contiguous_format
    model = build(trial.model).to(trial.device, memory_format=form)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=trial.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    mode = "reduce-overhead" if "graph" in trial.engine else None
    network: Any = torch.compile(model, mode=mode) if "compile" in trial.engine else model
    images = torch.randn(trial.batch, 3, 32, 32, device=trial.device).to(memory_format=form)
    labels = torch.randint(0, 1000, (trial.batch,), device=trial.device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(trial.device, AUTOCAST.get(trial.precision), enabled=trial.precision in AUTOCAST):
            loss = functional.cross_entropy(network(images).float(), labels)
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
