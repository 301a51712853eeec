"""Compare the tuned prediction with an eager prediction in the same precision, and measure the tail of its latency.

    python benchmarks/eager_inference.py [--case resnet50,32,1 …] [--engine triton+graph] [--pairs 5]

The peer is the protocol of timm's `benchmark.py` for inference: weights and one resident random batch in BF16,
channels_last, `cudnn.benchmark`, eager, under `torch.inference_mode`. Our leg is the workbook's trial: batch norm
folded, compiled or fused by our kernels, captured, with changing images, after the gate. Telemetry runs beside both.
Legs run in turns and in both orders. Each pair gives one ratio, and the interval is over pairs. At batch 1, queries are
also timed individually: the 99th percentile must be at most 1.2 times the median.

An aim is met if the whole interval lies above it, missed if the whole interval lies below, and undecided otherwise.
The exit code is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from labkit.data import open_data
from labkit.models import build as build_model
from labkit.telemetry.process import TelemetryProcess
from labkit.timing import CudaClock, time_queries
from workbook.engines.state import free_memory, quiet_collector, reset_compiler
from workbook.statistics import log_interval
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.infer import InferWorkload

LEG_S = 0.4
TAIL = 1.2  # bound on p99 over p50 at batch 1
QUERIES, QUERIES_S = 10_000, 5.0


class Case(NamedTuple):
    """A predicted case. `aim` is the ratio of tuned to eager throughput that it should reach."""

    model: str
    image_px: int
    batch: int
    aim: float
    engine: str = "compile+graph"


# Aims: the ratios that a bare probe of compiled and captured predictions reached on one H200.
CASES = (
    Case("resnet50", 32, 1, 11.0, "triton+graph"),
    Case("resnet50", 32, 10_000, 1.45),
    Case("resnet50", 224, 256, 1.45),
    Case("vgg16", 32, 1, 3.2, "triton+graph"),
    Case("vgg16", 32, 10_000, 1.6),
)


def main() -> int:
    """Measure and print every case. Return 1 if one missed its aim, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="*", default=[], help="MODEL,PIXELS,BATCH; all by default")
    parser.add_argument("--engine", choices=("compile+graph", "triton+graph"), help="rather than each case's own")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    by_name = {f"{case.model},{case.image_px},{case.batch}": case for case in CASES}
    if unknown := [name for name in options.case if name not in by_name]:
        parser.error(f"unknown case {unknown[0]!r}; valid: {' '.join(by_name)}")
    missed = 0
    for case in [by_name[name] for name in options.case] or CASES:
        missed += not compare(case._replace(engine=options.engine or case.engine), options.pairs)
    return 1 if missed else 0


def compare(case: Case, pairs: int) -> bool:
    """Measure and print one case. Return whether no aim or bound was missed."""
    data = open_data("synthetic32")
    trial = Trial(
        workload="infer",
        model=case.model,
        image_px=case.image_px,
        batch=case.batch,
        precision="bf16",
        engine=case.engine,
        memory_format="channels_last",
        data_checksum=data.checksum,
    )
    reset_compiler()
    free_memory("cuda")
    peer = Peer(trial)
    ours = build_workload(trial, data)
    assert isinstance(ours, InferWorkload)
    began = time.perf_counter()
    for _, prepare in ours.preparations():
        prepare()
    ours.check()
    took_s = time.perf_counter() - began
    clock, ratios, rates, ours_rates = CudaClock(), [], [], []
    with TelemetryProcess([0], log=Path(os.devnull)) as telemetry:
        telemetry.ready()
        free_memory("cuda")
        for pair in range(pairs):
            leg = {}
            for name, step in (("peer", peer.step), ("ours", ours.step))[:: 1 if pair % 2 else -1]:
                probe_s, _ = clock.time_block(step, 3)
                steps = max(3, int(LEG_S * 3 / probe_s))
                clock.time_block(step, max(1, steps // 4))
                seconds, _ = clock.time_block(step, steps)
                leg[name] = steps * case.batch / seconds
            rates.append(leg["peer"])
            ours_rates.append(leg["ours"])
            ratios.append(leg["ours"] / leg["peer"])
        quiet_collector()
        latencies = time_queries(ours.query, clock, QUERIES, limit_s=QUERIES_S) if case.batch == 1 else []
    ratio, plain, tuned = log_interval(ratios), log_interval(rates), log_interval(ours_rates)
    assert ratio.low is not None and ratio.high is not None
    verdict = "met" if ratio.low >= case.aim else "MISSED" if ratio.high < case.aim else "undecided"
    print(
        f"{case.model} {case.image_px} px batch {case.batch}: {case.engine} {tuned.point:,.0f} images/s, eager "
        f"{plain.point:,.0f}: {ratio.point:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}], n = {ratio.n}, aim {case.aim}x "
        f"{verdict}; prepared in {took_s:.1f} s; gate {ours.facts['gate']['logits_difference']:.3f}",
        flush=True,
    )
    tail = not latencies or tail_holds(latencies)
    return tail and verdict != "MISSED"


def tail_holds(latencies_ns: list[int]) -> bool:
    """Print the percentiles of latencies and return whether p99 is within its bound."""
    ordered = sorted(latencies_ns)
    p50, p99, p999 = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.99, 0.999))
    holds = p99 <= TAIL * p50
    print(
        f"    {len(ordered):,} queries: p50 {p50 / 1e3:.0f} us, p99 {p99 / 1e3:.0f}, p99.9 {p999 / 1e3:.0f}; p99 over "
        f"p50 {p99 / p50:.3f}, bound {TAIL} {'holds' if holds else 'BROKEN'}",
        flush=True,
    )
    return holds


class Peer:
    """timm's inference protocol for one model."""

    def __init__(self, trial: Trial) -> None:
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = build_model(trial.model, image_px=trial.image_px).eval()
            images = torch.randn(trial.batch, 3, trial.image_px, trial.image_px)
        self.model = model.to(dtype=torch.bfloat16, memory_format=torch.channels_last)
        self.images = images.to(dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step(self) -> None:
        """Queue one prediction of the resident batch."""
        self.model(self.images)


if __name__ == "__main__":
    sys.exit(main())
