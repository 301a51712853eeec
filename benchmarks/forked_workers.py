"""Does a step take as long in a forked worker as in one that starts by itself, and how much sooner does it begin?

A report forks the workers of a run from a process that has imported PyTorch (`workbook/forkserver.py`). Each pair is a
forked process of a new parent and a spawned process, in turn. Both time the same eager training steps of ResNet-18.

    python benchmarks/forked_workers.py [--device cuda] [--batch 16] [--pairs 10]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import labkit
from workbook.statistics import log_interval

WAYS = ("forked", "spawned")


def work(device: str, batch: int) -> tuple[float, float]:
    """Return the seconds of a step, and the moment when the first step had ended."""
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
    return labkit.time_step(step).median_s, first


def one_process(way: str, device: str, batch: int) -> None:
    """Print the seconds from this process's beginning, or its child's, to the end of the first step, and of a step."""
    began = float(os.environ["LABKIT_BEGAN"])
    if way == "forked":
        from labkit.torchvision_import import import_torchvision

        import_torchvision()
        began = time.monotonic()
        if child := os.fork():
            os.waitpid(child, 0)
            return
    step_s, first = work(device, batch)
    print(step_s, first - began, flush=True)


def pair(way: str, command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a step, and those from the start to the end of the first step."""
    environment = {**os.environ, "LABKIT_BEGAN": str(time.monotonic())}
    done = subprocess.run([*command, "--way", way], env=environment, check=True, capture_output=True, text=True)
    step_s, start_s = map(float, done.stdout.split())
    return step_s, start_s


def main() -> None:
    """Print each pair, and the ratio of forked over spawned with its 95 % interval."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return one_process(options.way, options.device, options.batch)
    command = [sys.executable, __file__, "--device", options.device, "--batch", str(options.batch)]
    ratios: dict[str, list[float]] = {"step": [], "start": []}
    for number in range(options.pairs):
        measured = {way: pair(way, command) for way in WAYS[:: 1 if number % 2 else -1]}
        for what, forked, spawned in zip(ratios, *(measured[way] for way in WAYS), strict=True):
            ratios[what].append(forked / spawned)
            print(f"{what}: forked {forked * 1e3:.2f} ms, spawned {spawned * 1e3:.2f} ms ({forked / spawned:.3f})")
    for what, values in ratios.items():
        ratio = log_interval(values)
        print(f"{what}, forked over spawned: {ratio.point:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], n = {ratio.n}")
    return None


if __name__ == "__main__":
    main()
