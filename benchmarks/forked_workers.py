"""Does a step take as long in a worker that is forked as in one that starts by itself, and how much sooner does it run?

The workbook forks its workers from a process that has imported PyTorch (`workbook/runner/forked.py`). Each pair is a
forked process and a spawned one, in turn, which time the same eager training steps of ResNet-18.

    python benchmarks/forked_workers.py [--device cuda] [--batch 16] [--pairs 10]
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection

import labkit
from workbook.runner.forked import IMPORTS
from workbook.statistics import log_interval

WAYS = ("forkserver", "spawn")


def work(told: Connection, device: str, batch: int) -> None:
    """Send the seconds of a step and the moment when the first step had ended."""
    import torch

    torch.manual_seed(0)
    network = labkit.build("resnet18").to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(1000, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    step()
    if device == "cuda":
        torch.cuda.synchronize()
    first = time.monotonic()
    told.send((labkit.time_step(step).median_s, first))


def pair(way: str, device: str, batch: int) -> tuple[float, float]:
    """Return the seconds of a step, and those from the process's start to the end of its first step."""
    context = multiprocessing.get_context(way)
    heard, told = context.Pipe(duplex=False)
    began = time.monotonic()
    process = context.Process(target=work, args=(told, device, batch))
    process.start()
    step_s, first = heard.recv()
    process.join()
    return step_s, first - began


def main() -> None:
    """Print each pair, and the ratio of forked over spawned with its 95 % interval."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload([IMPORTS])
    pair("forkserver", options.device, options.batch)  # the parent of forked processes imports once
    ratios: dict[str, list[float]] = {"step": [], "start": []}
    for number in range(options.pairs):
        measured = {way: pair(way, options.device, options.batch) for way in WAYS[:: 1 if number % 2 else -1]}
        for what, forked, spawned in zip(ratios, *(measured[way] for way in WAYS), strict=True):
            ratios[what].append(forked / spawned)
            print(f"{what}: forked {forked * 1e3:.2f} ms, spawned {spawned * 1e3:.2f} ms ({forked / spawned:.3f})")
    for what, values in ratios.items():
        ratio = log_interval(values)
        print(f"{what}, forked over spawned: {ratio.point:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], {len(values)} pairs")


if __name__ == "__main__":
    main()
