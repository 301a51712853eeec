"""Compiling and capturing a training step takes at most 60 s the first time and 20 s from the cache.

    python benchmarks/compile_time.py [--model resnet50] [--batch 64]

Runs two fresh processes, one after the other, like two passes of a report. The first starts with an empty Inductor
cache, the second with the cache that the first filled. Prints the compile and capture times of each process, and how
many times faster the second was. The exit code is 1 if a bound is broken. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from labkit.data import open_data
from workbook.engines.state import reset_compiler
from workbook.trials.recipes import COMPILED
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

COLD_S, CACHED_S = 60.0, 20.0


def main() -> int:
    """Measure and print. Return 1 if a bound is broken, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(prepare(options.model, options.batch)))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        cold, cached = (in_a_fresh_process(cache) for _ in range(2))
    for name, took in (("cold", cold), ("cached", cached)):
        print(f"{options.model} batch {options.batch}, {name}: " + ", ".join(f"{k} {v:.1f} s" for k, v in took.items()))
    first, second = (took["compile"] + took["capture"] for took in (cold, cached))
    fine = first <= COLD_S and second <= CACHED_S
    print(f"    cold over cached {first / second:.1f}x; the bounds of {COLD_S:.0f} and {CACHED_S:.0f} s", end=" ")
    print("hold" if fine else "are broken")
    return 0 if fine else 1


def in_a_fresh_process(cache: str) -> dict[str, float]:
    """Return the seconds of each preparation, measured in a fresh process."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
    command = [sys.executable, __file__, "--one", *sys.argv[1:]]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def prepare(model: str, batch: int) -> dict[str, float]:
    """Build the workload of a report's trial, and return the seconds of each preparation."""
    data = open_data("synthetic32")
    reset_compiler()
    workload = build_workload(Trial(model=model, batch=batch, **COMPILED), data)
    took = {}
    for name, call in workload.preparations():
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        took[name] = time.perf_counter() - began
    workload.check()
    return took


if __name__ == "__main__":
    sys.exit(main())
