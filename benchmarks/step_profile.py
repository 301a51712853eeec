"""Profile the kernels of a tuned training step: where its time goes, and what bounds it.

    python benchmarks/step_profile.py [--case resnet50,32,2048] [--engine compile+graph] [--steps 20] [--device cpu]

Times the step of a workbook's trial, then traces it as the studies do. Prints the step time without the profiler and
the tables of `labkit trace`: time by class of kernel, the longest kernels, gaps. On a CPU, the tables list the
operators of the baseline loop. The profile explains the time and has no bound.
"""

from __future__ import annotations

import argparse
import sys

from labkit.data import open_data
from labkit.timing import CudaClock, HostClock
from workbook.results.from_trace import sentence, tables
from workbook.trace import Analysis, take_trace
from workbook.trace.profiler import marked
from workbook.trials.recipes import CAPTURED, COMPILED
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

RECIPES = {"graph": CAPTURED, "compile+graph": COMPILED}


def main() -> int:
    """Measure and print the step time and the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="resnet50,32,2048", help="MODEL,PIXELS,BATCH")
    parser.add_argument("--engine", choices=tuple(RECIPES), default="compile+graph")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    model, image_px, batch = options.case.split(",")
    on_gpu = options.device == "cuda"
    data = open_data("synthetic32")
    recipe = RECIPES[options.engine] if on_gpu else {}
    about = {"model": model, "image_px": int(image_px), "batch": int(batch), "device": options.device}
    trial = Trial(**about, **recipe, data_checksum=data.checksum)
    workload = build_workload(trial, data)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    clock = CudaClock() if on_gpu else HostClock()
    clock.time_block(workload.step, options.steps)
    seconds, _ = clock.time_block(workload.step, options.steps)
    analysis = Analysis("kernels" if on_gpu else "operators")
    with marked():
        take_trace(workload.step, clock, analysis, asked_for=options.steps, on_gpu=on_gpu)
    traced = analysis.traced(asked_for=options.steps)
    print(f"{model} {image_px} px batch {batch}: step {1e3 * seconds / options.steps:.2f} ms without the profiler")
    print(sentence(traced))
    for title, table in tables(traced).items():
        print(f"\n{title}\n{table.to_string(index=False, float_format='{:.4g}'.format)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
