"""INT8 on a GPU is at least 3.7x as fast as tuned FP32 at a large batch, and faster than tuned BF16.

    python benchmarks/int8_on_gpu.py [--case resnet50,224,256 …] [--pairs 5]

Legs are the workbook's trials, each after its gate: FP32 (TF32 off) and BF16 compiled and captured, and BF16 and INT8
by the fused kernels, captured. TensorRT is no leg: on 27 November 2026 PyPI had only a placeholder of its libraries,
and NVIDIA's own package index could not be reached from the machines that run this.

Legs run in turns and in both orders in one process, with telemetry. Each round gives one ratio, and the interval is
over rounds. Bounds are judged for cases that have them: met if the whole interval lies above, missed if the whole
interval lies below, undecided otherwise. The exit code is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from labkit.data import open_data
from labkit.telemetry.process import TelemetryProcess
from labkit.timing import CudaClock
from workbook.engines.state import free_memory, reset_compiler
from workbook.statistics import log_interval
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.infer import InferWorkload

LEG_S = 0.4
LEGS = (("fp32", "compile+graph"), ("bf16", "compile+graph"), ("bf16", "triton+graph"), ("int8", "triton+graph"))
OVER_FP32, OVER_BF16 = 3.7, 1.0
CASES = ("resnet50,224,256", "resnet50,32,1", "resnet50,32,10000")
JUDGED = CASES[0]


def main() -> int:
    """Measure and print every case. Return 1 if a bound was missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="*", default=[JUDGED], metavar="MODEL,PX,BATCH")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    return 1 if sum(compare(case, options.pairs) for case in options.case) else 0


def compare(case: str, pairs: int) -> int:
    """Measure and print one case. Return the number of missed bounds."""
    model, px, batch = case.split(",")
    data = open_data("synthetic32")
    reset_compiler()
    free_memory("cuda")
    workloads = {}
    for precision, engine in LEGS:
        trial = Trial(
            workload="infer",
            model=model,
            image_px=int(px),
            batch=int(batch),
            precision=precision,
            engine=engine,
            memory_format="channels_last",
            data_checksum=data.checksum,
        )
        workload = build_workload(trial, data)
        assert isinstance(workload, InferWorkload)
        began = time.perf_counter()
        for _, prepare in workload.preparations():
            prepare()
        workload.check()
        gate = workload.facts["gate"]["logits_difference"]
        print(f"    {precision} {engine}: prepared in {time.perf_counter() - began:.1f} s, gate {gate:.3f}", flush=True)
        workloads[precision, engine] = workload
    rates: dict[tuple[str, str], list[float]] = {leg: [] for leg in LEGS}
    clock = CudaClock()
    with TelemetryProcess([0], log=Path(os.devnull)) as telemetry:
        telemetry.ready()
        for pair in range(pairs):
            for leg in LEGS[:: 1 if pair % 2 else -1]:
                step = workloads[leg].step
                probe_s, _ = clock.time_block(step, 3)
                steps = max(3, int(LEG_S * 3 / probe_s))
                clock.time_block(step, max(1, steps // 4))
                seconds, _ = clock.time_block(step, steps)
                rates[leg].append(steps * int(batch) / seconds)
    means = ", ".join(
        f"{precision} {engine} {log_interval(rates[precision, engine]).point:,.0f}" for precision, engine in LEGS
    )
    print(f"{case}, images/s: {means}", flush=True)
    missed = 0
    int8 = rates[LEGS[-1]]
    for precision, engine in LEGS[:-1]:
        aim = (OVER_FP32 if precision == "fp32" else OVER_BF16) if case == JUDGED else None
        missed += judged(f"    INT8 over {precision} {engine}", int8, rates[precision, engine], aim)
    return missed


def judged(name: str, over: list[float], under: list[float], aim: float | None) -> bool:
    """Print one ratio and return whether its aim was missed."""
    ratio = log_interval([rate / base for rate, base in zip(over, under, strict=True)])
    assert ratio.low is not None and ratio.high is not None
    verdict = ""
    if aim is not None:
        verdict = "met" if ratio.low >= aim else "MISSED" if ratio.high < aim else "undecided"
        verdict = f", aim {aim}x {verdict}"
    print(f"{name}: {ratio.point:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], n = {ratio.n}{verdict}", flush=True)
    return "MISSED" in verdict


if __name__ == "__main__":
    sys.exit(main())
