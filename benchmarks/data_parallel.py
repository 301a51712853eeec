"""Weak scaling of the eager and the tuned step: images/s of n GPUs over n times the best images/s of one GPU.

    python benchmarks/data_parallel.py [--case vgg16,32,256 …] [--engine eager graph compile+graph] [--gpus 1 2 4]
                                       [--passes 3] [--bucket-mb 8 25 100] [--unshared] [--rivals]
                                       [--interconnect direct] [--limit 300] [--records FOLDER]

Trains every case on one GPU and on several, with the same batch per GPU, through the project's runner: fresh worker
processes in each pass, trials in random order after the gate, with telemetry. `eager` computes in BF16 and exchanges
FP32 gradients, as DistributedDataParallel does by default. The other engines exchange BF16 gradients in buckets inside
the captured step, and divide the update of the large buckets among the GPUs (`workbook/engines/exchange/buckets.py`).

Prints images/s with the 95 % interval over the passes, and the efficiency. The efficiency of a pass is its images/s
over the number of GPUs times images/s of the engine's best pass on one GPU. `--bucket-mb` adds other bucket sizes,
and `--unshared` adds runs in which every GPU makes every update. `--rivals` adds DistributedDataParallel captured whole
and ZeRO's optimiser in the eager loop, each with its ratio over the project's step. No option changes anything on one
GPU. An aim is met if the whole interval lies above it, missed if the whole interval lies below, undecided otherwise.
The exit code is 1 if a tuned engine with default settings misses its aim, or if a trial failed, and 130 after Ctrl-C.

Four GPUs with all cases and engines: 18 trials per pass, and one minute of compilation in the first pass.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from labkit.data import DataSet, open_data
from workbook.hardware.host import Host, this_host
from workbook.hardware.limits import usable_threads
from workbook.hardware.profile import Profile, Timing
from workbook.records import Blocks, Record
from workbook.records.store import Store
from workbook.runner import measure
from workbook.statistics import Interval, log_interval
from workbook.trials.recipes import CAPTURED, COMPILED, COMPILED_ON_CPU, FUSED_ON_CPU, Recipe, on_devices
from workbook.trials.trial import WORDS, Trial
from workbook.workloads import Workload
from workbook.workloads.train import build as build_training

EAGER: Recipe = {name: value for name, value in CAPTURED.items() if name not in ("engine", "optimizer")}
ENGINES = {
    "cuda": {"eager": {**EAGER, "optimizer": "sgd_fused"}, "graph": CAPTURED, "compile+graph": COMPILED},
    "cpu": {"eager": FUSED_ON_CPU, "compile": COMPILED_ON_CPU},  # for a test of this file: two ranks on one CPU
}
TIMING = Timing(warmup_s=1.0, timed_s=2.5, block_s=0.25, limit_s=300)
STUDY, SCALE = "01_training", "smoke"
INTERRUPTED = 130  # as an interrupted `labkit` exits
UNSHARED = "benchmarks.data_parallel_unshared"
RIVALS = "benchmarks.data_parallel_rivals"


class Case(NamedTuple):
    """A trained case. `aims` holds the efficiency it should reach by number of GPUs."""

    model: str
    image_px: int
    batch: int
    aims: dict[int, float]


CASES = (Case("vgg16", 32, 256, {4: 0.85}), Case("resnet50", 224, 256, {8: 0.97}))


def main() -> int:
    """Measure and print. Return 130 if interrupted, 1 if an aim was missed or a trial failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(ENGINES), default="cuda")
    parser.add_argument("--case", nargs="*", default=[], help="MODEL,PIXELS,BATCH; all by default")
    parser.add_argument("--engine", nargs="*", default=[], help="all by default")
    parser.add_argument("--gpus", nargs="*", type=int, default=[], help="default: powers of 2 up to the GPUs here")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--bucket-mb", nargs="*", type=float, default=[], help="10**6 bytes each")
    parser.add_argument("--unshared", action="store_true", help="also with every update on every GPU")
    parser.add_argument("--rivals", action="store_true", help="also with PyTorch's own exchange and with ZeRO")
    parser.add_argument("--records", default="", help="a folder for records, from which an interrupted run goes on")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a trial counts as hanging")
    parser.add_argument("--interconnect", choices=WORDS["interconnect"], default="direct")
    options = parser.parse_args()
    host = this_host()
    there = len(host.gpus) if options.device == "cuda" else usable_threads()
    counts = options.gpus or [2**power for power in range(there.bit_length()) if 2**power <= there]
    by_shape = {(case.model, case.image_px, case.batch): case for case in CASES}
    named = [(model, int(px), int(batch)) for model, px, batch in (text.split(",") for text in options.case)]
    cases = [by_shape.get(shape, Case(*shape, {})) for shape in named] or list(CASES)
    engines = options.engine or list(ENGINES[options.device])
    data = open_data("synthetic32")
    trials = [
        trial
        for case in cases
        for engine in engines
        for count in sorted({1, *counts})
        for trial in variants(case, ENGINES[options.device][engine], count, options, data)
    ]
    records, complete = measured(trials, host, options, max(counts))
    judged = [show(case, engine, records) for case in cases for engine in engines]
    return INTERRUPTED if not complete else 0 if all(judged) else 1


def variants(case: Case, recipe: Recipe, count: int, options: argparse.Namespace, data: DataSet) -> list[Trial]:
    """Return the trial on `count` GPUs, and if it has buckets, its variants with other bucket sizes or `--unshared`."""
    trial = Trial(
        model=case.model,
        image_px=case.image_px,
        batch=case.batch,
        augment=True,
        device=options.device,
        data=data.name,
        data_checksum=data.checksum,
        interconnect=options.interconnect if count > 1 else "direct",
        **on_devices(recipe, count),
    )
    if count == 1:
        return [trial]
    rivals = [replace(trial, workload=RIVALS)] if options.rivals else []
    if trial.engine == "eager":
        return [trial, *rivals]
    sizes = [round(1e6 * size_mb) for size_mb in options.bucket_mb]
    changed = [replace(trial, workload="benchmarks.data_parallel", size=size) for size in sizes]
    if options.unshared:
        changed.append(replace(trial, workload=UNSHARED))
    return [trial, *changed, *rivals]


def build(trial: Trial, data: DataSet) -> Workload:
    """Return the training workload of a trial with buckets of `trial.size` bytes."""
    with patch("workbook.engines.exchange.buckets.BUCKET_BYTES", trial.size):
        return build_training(trial, data)


def measured(trials: Sequence[Trial], host: Host, options: argparse.Namespace, count: int) -> tuple[list[Record], bool]:
    """Run the trials that the folder `options.records` lacks (without a name, all).

    Return its records, and whether no interruption left some out.
    """
    device: str = options.device
    about = {"kind": device, "pattern": ".", "count": count} if device == "cuda" else {"kind": device}
    chosen = TIMING.model_copy(update={"passes": options.passes, "limit_s": options.limit})
    timing = {SCALE: chosen.model_dump()}
    profile = Profile.model_validate({"name": "here", "title": "this machine", "device": about, "timing": timing})
    with tempfile.TemporaryDirectory() as folder:
        store, complete = Store(Path(options.records or folder)), True
        try:
            measure(trials, study=STUDY, scale=SCALE, profile=profile, host=host, store=store)
        except KeyboardInterrupt:
            complete = False
            print("Interrupted: some rows lack passes.", file=sys.stderr)
        return store.read(STUDY, host.id), complete


def show(case: Case, engine: str, records: Sequence[Record]) -> bool:
    """Print the rows of one engine. Return whether no aim was missed and no trial failed."""
    by_trial: dict[Trial, list[Record]] = {}
    for record in records:
        trial = record.as_trial
        if (trial.model, trial.image_px, trial.batch, trial.engine) == (case.model, case.image_px, case.batch, engine):
            by_trial.setdefault(trial, []).append(record)
    best, fine = None, True
    plain: dict[tuple[int, int], float] = {}  # images/s of the project's step by number of devices and pass
    print(f"{case.model} {case.image_px} px, batch {case.batch} a device, {engine}")
    for trial in sorted(by_trial, key=lambda key: (key.devices, key.workload != "train", key.size, key.workload)):
        failed = [record.reason for record in by_trial[trial] if record.status != "ok"]
        by_pass = {record.pass_number: rate(record) for record in by_trial[trial] if record.status == "ok"}
        rates = list(by_pass.values())
        row = f"  {trial.devices} x" + (f", buckets of {trial.size / 1e6:g} MB" if trial.size else "")
        row += ", every update everywhere" if trial.workload == UNSHARED else ""
        rival = "ZeRO" if engine == "eager" else "DistributedDataParallel captured"
        row += f", {rival}" if trial.workload == RIVALS else ""
        if failed:
            print(f"{row}: {len(failed)} of {len(by_trial[trial])} passes failed: {failed[0]}")
            fine = False
        if not rates:
            continue
        if trial.devices == 1:
            best = max(rates)
        row += f": {worded(log_interval(rates), ',.0f')} images/s, n = {len(rates)}"
        if best is not None and trial.devices > 1:
            efficiency = log_interval([images_per_s / (trial.devices * best) for images_per_s in rates])
            row += f"; efficiency {worded(efficiency, '.3f')}"
            verdict = against(efficiency, case.aims.get(trial.devices))
            row += f", {verdict}" if verdict else ""
            if trial.workload == "train":
                plain |= {(trial.devices, number): value for number, value in by_pass.items()}
            ratios = [plain[trial.devices, n] / value for n, value in by_pass.items() if (trial.devices, n) in plain]
            if trial.workload != "train" and ratios:
                row += f"; the project's step over it {worded(log_interval(ratios), '.3f')}"
            fine &= engine == "eager" or trial.workload != "train" or "MISSED" not in verdict
            for name, title in (("gradient_buckets_bytes", "buckets"), ("shared_buckets_bytes", "updates shared out")):
                if sizes := by_trial[trial][0].facts.get(name):
                    row += f"; {title} of {', '.join(f'{size / 1e6:.1f}' for size in sizes)} MB"
        print(row, flush=True)
    return fine


def rate(record: Record) -> float:
    """Return images/s of a pass."""
    assert isinstance(record.result, Blocks)
    value = record.result.rate(record.result.images_per_step)
    assert value is not None
    return value


def worded(interval: Interval, digits: str) -> str:
    """Return the point with its interval as text. A single pass has no interval."""
    if interval.low is None or interval.high is None:
        return f"{interval.point:{digits}} [no interval]"
    return f"{interval.point:{digits}} [{interval.low:{digits}}, {interval.high:{digits}}]"


def against(efficiency: Interval, aim: float | None) -> str:
    """Return the verdict on an efficiency and its aim, empty without an aim."""
    if aim is None:
        return ""
    if efficiency.low is None or efficiency.high is None:
        return f"aim {aim:.2f} undecided"
    verdict = "met" if efficiency.low >= aim else "MISSED" if efficiency.high < aim else "undecided"
    return f"aim {aim:.2f} {verdict}"


if __name__ == "__main__":
    sys.exit(main())
