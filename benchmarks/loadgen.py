"""Compare the workbook's throughput and latency of inference with MLPerf's LoadGen.

    python benchmarks/loadgen.py [--device cuda] [--case resnet50,1 resnet50,256] [--pairs 5]

Needs `pip install mlcommons-loadgen`. LoadGen drives the same trial that the workbook times. Its Offline scenario hands
over all samples at once, SingleStream one after another. A LoadGen sample is one of our batches: LoadGen hands over
Python objects, and a million objects per second would dominate the measurement. The workbook times the same steps as a
block of the same number of steps, and as individual queries. Legs run in turns and in both orders. Each pair gives one
ratio, and the interval is over pairs.

Both agree if the interval lies within 3 % of 1. The exit code is 1 if the interval lies wholly outside.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from labkit.data import open_data
from labkit.models import MODELS
from labkit.timing import Clock, CudaClock, HostClock, time_queries
from workbook.engines.state import free_memory, reset_compiler
from workbook.statistics import log_interval
from workbook.trials.recipes import predicting
from workbook.trials.trial import Trial
from workbook.workloads import build_workload
from workbook.workloads.infer import InferWorkload

AGREEMENT = 0.03
LEG_S = 2.0
SAMPLES = 256  # size of LoadGen's library; LoadGen asks for samples by number, but the workload takes batches in turn


def main() -> int:
    """Measure and print every case. Return 1 if a scenario disagrees, 2 without LoadGen, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", nargs="*", default=["resnet50,1", "resnet50,256"], help="MODEL,BATCH")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    try:
        import mlperf_loadgen  # noqa: F401 - checks that it is installed
    except ImportError:
        print("LoadGen is not installed: pip install mlcommons-loadgen, then run this again.", file=sys.stderr)
        return 2
    apart = 0
    for case in options.case:
        model, _, batch = case.partition(",")
        if model not in MODELS or not batch.isdecimal() or int(batch) < 1:
            parser.error(f"{case!r} is not MODEL,BATCH, for example resnet50,64; models: {', '.join(MODELS)}")
        apart += compare(model, int(batch), options.device, options.pairs)
    return 1 if apart else 0


def compare(model: str, batch: int, device: str, pairs: int) -> int:
    """Measure one trial in both scenarios. Return the number of scenarios that disagree."""
    data = open_data("synthetic32", train_images=2000, val_images=2000)
    engine = "compile+graph" if device == "cuda" else "plain"
    recipe = predicting(device)[engine]  # type: ignore[arg-type]
    shared = {"data": data.name, "data_checksum": data.checksum, "device": device}
    trial = Trial(workload="infer", model=model, batch=batch, **shared, **recipe)
    reset_compiler()
    free_memory(device)
    workload = build_workload(trial, data)
    assert isinstance(workload, InferWorkload)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    clock: Clock = CudaClock() if device == "cuda" else HostClock()
    one_s, _ = clock.time_block(workload.step, 5)
    steps = max(10, int(LEG_S * 5 / one_s))
    legs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "Offline, images/s": (
            lambda: batch * offline(workload, steps),
            lambda: batch * steps / clock.time_block(workload.step, steps)[0],
        ),
        "SingleStream, median latency": (
            lambda: single_stream(workload),
            lambda: median(time_queries(workload.query, clock, 10**6, limit_s=LEG_S)) / 1e9,
        ),
    }
    apart = 0
    for name, (theirs, ours) in legs.items():
        ratios, values = [], []
        theirs(), ours()  # warm-up
        for pair in range(pairs):
            results = {}
            for leg, run in (("theirs", theirs), ("ours", ours))[:: 1 if pair % 2 else -1]:
                results[leg] = run()
            ratios.append(results["theirs"] / results["ours"])
            values.append(results["ours"])
        ratio, own = log_interval(ratios), log_interval(values)
        assert ratio.low is not None and ratio.high is not None
        low, high = 1 - AGREEMENT, 1 + AGREEMENT
        agree = low <= ratio.low and ratio.high <= high
        broken = ratio.high < low or ratio.low > high
        apart += broken
        print(
            f"{model} batch {batch} {device} {engine}: {name}: ours {own.point:.5g}, LoadGen over ours "
            f"{ratio.point:.4f} [{ratio.low:.4f}, {ratio.high:.4f}], n = {ratio.n}: "
            f"{'agree' if agree else 'DISAGREE' if broken else 'undecided'} (within {AGREEMENT:.0%})",
            flush=True,
        )
    return apart


def offline(workload: InferWorkload, steps: int) -> float:
    """Return LoadGen's samples per second when LoadGen hands over `steps` samples at once."""

    def issue(samples: list[Any]) -> None:
        for _ in samples:
            workload.step()
        workload._wait()
        complete(samples)

    settings = _settings("Offline")
    settings.min_duration_ms = 0
    settings.min_query_count = steps
    settings.offline_expected_qps = 1
    return run(issue, settings, r"Samples per second: ([\d.e+]+)")


def single_stream(workload: InferWorkload) -> float:
    """Return LoadGen's median latency in seconds."""

    def issue(samples: list[Any]) -> None:
        workload.query()
        complete(samples)

    settings = _settings("SingleStream")
    settings.min_duration_ms = int(1000 * LEG_S)
    settings.min_query_count = 10
    return run(issue, settings, r"50\.00 percentile latency \(ns\) *: ([\d.e+]+)") / 1e9


def _settings(scenario: str) -> Any:
    import mlperf_loadgen as lg

    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    return settings


def complete(samples: list[Any]) -> None:
    """Tell LoadGen that these samples are answered."""
    import mlperf_loadgen as lg

    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0) for sample in samples])


def run(issue: Callable[[list[Any]], None], settings: Any, wanted: str) -> float:
    """Run one test and return the number that the pattern `wanted` captures in its summary. Raise if it is missing."""
    import mlperf_loadgen as lg

    with tempfile.TemporaryDirectory() as folder:
        logs = lg.LogSettings()
        logs.log_output.outdir = folder
        logs.log_output.copy_summary_to_stdout = False
        logs.enable_trace = False
        sut = lg.ConstructSUT(issue, lambda: None)
        library = lg.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
        lg.StartTestWithLogSettings(sut, library, settings, logs)
        time.sleep(0.05)  # LoadGen's logger writes in a thread
        lg.DestroyQSL(library)
        lg.DestroySUT(sut)
        summary = (Path(folder) / "mlperf_log_summary.txt").read_text()
    match = re.search(wanted, summary)
    if match is None:
        raise RuntimeError(f"LoadGen's summary has no {wanted!r}:\n{summary}")
    return float(match[1])


if __name__ == "__main__":
    sys.exit(main())
