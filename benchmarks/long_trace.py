"""AlexNet at 224 px and batch 4 traced for 30 s: less than 2 GB of memory and less than 30 s of analysis.

    python benchmarks/long_trace.py [--device cpu] [--seconds 30] [--steps 1000000] [--tiny]

On a CPU, a step of AlexNet takes so long that few events accumulate. `--tiny` traces steps of 400 tiny operators
instead, which have more events per second than the steps of a GPU. Memory is the peak growth of the process's resident
set over the training's memory before the trace (by Linux's count). The exit code is 1 if a bound is broken.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from labkit.data import open_data
from labkit.timing import CudaClock, HostClock
from workbook.trace import Analysis, take_trace
from workbook.trace.profiler import marked
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

MEMORY_BYTES, ANALYSIS_S = 2e9, 30.0
PLAIN_STEPS = 20  # untraced steps before the trace


class Timed:
    """An analysis whose time, pieces and bytes are counted."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.seconds, self.pieces, self.bytes = analysis, 0.0, 0, 0

    def add(self, path: Path, *, steps: int) -> None:
        """Analyse a piece and count its time and size."""
        began = time.perf_counter()
        self.bytes += path.stat().st_size
        self.analysis.add(path, steps=steps)
        self.seconds += time.perf_counter() - began
        self.pieces += 1


def highest_bytes(*, forget: bool = False) -> int:
    """Return the peak of the resident set in bytes since its last reset. `forget` resets the peak first."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def tiny_step(device: str) -> Callable[[], object]:
    """Return a step of 400 operators that take almost no time themselves."""
    small = torch.ones(8, 8, device=device)

    def step() -> None:
        for _ in range(200):
            (small @ small).add_(1)

    return step


def main() -> int:
    """Run and print. Return 1 if a bound is broken, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    data = open_data("synthetic32", train_images=2000, val_images=200)
    about = {"model": "alexnet", "image_px": 224, "batch": 4, "device": arguments.device}
    workload = build_workload(Trial(**about, data=data.name, data_checksum=data.checksum), data)
    workload.check()
    clock = CudaClock() if on_gpu else HostClock()
    step = tiny_step(arguments.device) if arguments.tiny else workload.step
    plain_s, _ = clock.time_block(step, PLAIN_STEPS)
    analysis = Timed(Analysis(of="kernels" if on_gpu else "operators"))
    before = psutil.Process().memory_info().rss
    highest_bytes(forget=True)
    began = time.perf_counter()
    with marked():
        taken = take_trace(
            step,
            clock,
            analysis,
            asked_for=arguments.steps,
            limit_s=arguments.seconds,
            step_s=plain_s / PLAIN_STEPS,
            on_gpu=on_gpu,
            after_piece=workload.read_loss or (lambda: None),
        )
    whole_s = time.perf_counter() - began
    began = time.perf_counter()
    traced = analysis.analysis.traced(asked_for=arguments.steps, steps_before=PLAIN_STEPS + 1)
    analysis.seconds += time.perf_counter() - began
    grown = highest_bytes() - before
    slower = traced.elapsed_s / traced.steps / (plain_s / PLAIN_STEPS)
    subject = "400 tiny operators" if arguments.tiny else "AlexNet 224 px, batch 4"
    print(
        f"{subject}, {arguments.device}: {taken.steps} steps in {analysis.pieces} pieces, "
        f"{taken.elapsed_s:.1f} s under the profiler, {whole_s:.1f} s in all; files of {analysis.bytes / 1e6:,.0f} MB; "
        f"a traced step {slower:.2f}x a plain one"
    )
    print(f"memory grew by {grown / 1e9:.3f} GB at most: {grown / MEMORY_BYTES:.2f} of 2 GB")
    print(f"analysis took {analysis.seconds:.1f} s: {analysis.seconds / ANALYSIS_S:.2f} of 30 s")
    return 0 if grown < MEMORY_BYTES and analysis.seconds < ANALYSIS_S else 1


if __name__ == "__main__":
    sys.exit(main())
