"""Metrics that a record holds, or that follow from this record alone.

Metrics that need several passes or the profile are in `from_telemetry` and `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import fmean

from workbook.records import Blocks, Epoch, Record
from workbook.records.scored import Accuracy
from workbook.results import from_reads
from workbook.results import from_trace as traced


def value_of(record: Record, metric: str) -> float | None:
    """Return a metric of a record in SI units; None if the record does not have it."""
    if record.result is None:
        return None
    if metric in CACHED:
        return value_of_any(record, CACHED[metric]) if took_from_cache(record) else None
    if metric in CACHED.values() and took_from_cache(record):
        return None
    return value_of_any(record, metric)


def value_of_any(record: Record, metric: str) -> float | None:
    """Return a metric of a record whether or not its compiler found programs on the disk."""
    if record.result is None:
        return None
    if record.epochs and metric in OF_TIME and not record.as_trial.has_time:
        return None
    derive = (_OF_BLOCKS if record.blocks else _OF_EPOCHS if record.epochs else from_reads.FIGURES).get(metric)
    if derive:
        return derive(record)
    if metric in PREPARATIONS:
        return record.phases_s.get(PREPARATIONS[metric])
    return record.number(metric)


# What compiling takes again once the compiler's cache on the disk has programs -> what it takes the first time.
CACHED = {f"cached_{name}": name for name in ("compile_s", "time_to_first_step_s", "first_prediction_s")}


def took_from_cache(record: Record) -> bool:
    """Return whether the compiler took programs of this trial from its cache on the disk."""
    regions = record.facts.get("compiled_regions")
    return bool(isinstance(regions, dict) and regions.get("from the cache"))


def why_none(record: Record, metric: str) -> str:
    """Return why a record has no value of a metric that no sensor reads."""
    if metric in PERCENTILES and record.blocks and record.blocks.queries:
        return "too few batches were timed one at a time for this percentile"
    if metric in CACHED.values() and value_of_any(record, metric) is not None:
        return f"the compiler's cache had the programs: see cached_{metric}"
    if metric == "epochs_to_target" and record.epochs and record.trial.get("target_top1"):
        return "the target was not reached"
    return "this configuration does not produce it"


# One-time work of an engine before a trial is timed; the worker times each part separately.
PREPARATIONS = {"trace_s": "trace", "compile_s": "compile", "capture_s": "capture"}
BEFORE_PREDICTING = ("convert", "calibrate", "compile", "capture")


def _epoch_s(record: Record) -> float | None:
    """Return the seconds of one epoch of the training images, at the throughput of the timed blocks."""
    rate, images = value_of(record, "images_per_s"), record.number("train_images")
    return images / rate if rate and images else None


def _run_s(record: Record) -> float | None:
    """Return the seconds until each job of a trial has seen the training images once, at the blocks' throughput."""
    seconds = _epoch_s(record)
    return None if seconds is None else seconds * (record.number("jobs") or 1)


PERCENTILES = {"latency_s": 0.5, "latency_p90_s": 0.9, "latency_p99_s": 0.99, "latency_p999_s": 0.999}
BEYOND = 2  # queries that must lie beyond a percentile; with fewer, chance decides it


def _latency_s(share: float) -> Callable[[Record], float | None]:
    """Return a function of a record: the latency that this share of queries kept (nearest rank); None if too few."""

    def of(record: Record) -> float | None:
        queries = _blocks(record).queries
        if queries is None:
            return None
        ordered = sorted(queries.latency_ns)
        rank = math.ceil(round(share * len(ordered), 6))
        return ordered[rank - 1] / 1e9 if len(ordered) - rank >= BEYOND else None

    return of


def _first_prediction_s(record: Record) -> float | None:
    """Return the seconds to the first prediction: build, convert, calibrate, compile, capture and the first step."""
    build_s, first_s = (record.number(name) for name in ("build_s", "first_step_s"))
    if record.trial["workload"] != "infer" or build_s is None or first_s is None:
        return None
    return float(build_s + first_s + sum(record.phases_s.get(name, 0.0) for name in BEFORE_PREDICTING))


def first_step_s(record: Record) -> float | None:
    """Return the seconds from a built network to the end of its first step: trace, compile, capture, and the step.

    The value is the workload's fact `first_step_s`, else the sum of the phases that the worker timed. For compiled
    PyTorch, later steps of the correctness check do not count.
    """
    fact_s = record.number("first_step_s")
    if fact_s is not None:
        return fact_s
    prepared = preparing_s(record)
    if prepared and record.framework == "torch":  # compiling and capturing run its first steps
        return prepared
    step_s = record.phases_s.get("first_step")
    return None if step_s is None else prepared + step_s


def preparing_s(record: Record) -> float:
    """Return the seconds of tracing, compiling and capturing that the worker timed separately; 0 without any."""
    return sum(record.phases_s.get(name, 0.0) for name in PREPARATIONS.values())


def _time_to_first_step_s(record: Record) -> float | None:
    """Return the seconds of building a training's network and its first step, without loading the framework."""
    if record.trial["workload"] != "train":  # inference has `first_prediction_s`
        return None
    fact_s, first_s = record.number("build_s"), first_step_s(record)
    build_s = record.phases_s.get("build") if fact_s is None else fact_s
    return None if build_s is None or first_s is None else build_s + first_s


def _framework_peak_bytes(record: Record) -> float | None:
    """Return the peak of the framework's counter of GPU memory; None on a CPU."""
    if record.trial["device"] != "cuda":
        return None
    return record.number("memory_bytes")


_OF_BLOCKS: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: _blocks(record).rate(_blocks(record).images_per_step),
    "flop_per_s": lambda record: _blocks(record).rate(_blocks(record).flop_per_step),
    "bytes_per_s": lambda record: _blocks(record).rate(_blocks(record).bytes_per_step),
    "launches_per_s": lambda record: _blocks(record).rate(_blocks(record).launches_per_step),
    "launch_rate_beside": lambda record: fmean(rates) if (rates := _blocks(record).launches_per_s) else None,
    "step_s": lambda record: _blocks(record).step_s,
    "flop_per_step": lambda record: _blocks(record).flop_per_step,
    "epoch_s": _epoch_s,
    "run_s": _run_s,
    "first_prediction_s": _first_prediction_s,
    "time_to_first_step_s": _time_to_first_step_s,
    "framework_peak_bytes": _framework_peak_bytes,
    "stall_share": from_reads.stall_share,
    "top1": lambda record: _share(record, "top1"),
    "top5": lambda record: _share(record, "top5"),
    **{name: _latency_s(share) for name, share in PERCENTILES.items()},
    **{name: partial(traced.value, metric=name) for name in traced.METRICS},
}


def _share(record: Record, accuracy: Accuracy) -> float | None:
    """Return the share of scored images that were classified correctly; else the workload's own fact."""
    scored = _blocks(record).scored
    return scored.share(accuracy) if scored else record.number(accuracy)


def _blocks(record: Record) -> Blocks:
    assert record.blocks is not None
    return record.blocks


def _epochs(record: Record) -> list[Epoch]:
    assert record.epochs is not None
    return record.epochs.epochs


def epochs_to_target(record: Record) -> float | None:
    """Return the epochs until the validation accuracy reached the target, interpolated linearly between two epochs.

    Before the first epoch the accuracy is chance. Return None without a target, or if it was not reached.
    """
    target = float(record.trial.get("target_top1", 0.0))
    if not target or record.epochs is None:
        return None
    before = 1 / int(record.trial["classes"])
    for number, epoch in enumerate(_epochs(record), start=1):
        if epoch.top1 >= target:
            return number - (epoch.top1 - target) / (epoch.top1 - before) if target > before else float(number)
        before = epoch.top1
    return None


OF_TIME = ("images_per_s", "step_s", "epoch_s", "run_s")  # times and rates of a training run
# Of a training run: times and rates over the whole run, loss and accuracy after the last epoch.
_OF_EPOCHS: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: sum(e.images for e in _epochs(record)) / sum(e.train_s for e in _epochs(record)),
    "step_s": lambda record: sum(e.train_s for e in _epochs(record)) / sum(e.steps for e in _epochs(record)),
    "epoch_s": lambda record: sum(e.train_s for e in _epochs(record)) / len(_epochs(record)),
    "run_s": lambda record: sum(e.train_s + e.val_s for e in _epochs(record)),
    "epochs_to_target": epochs_to_target,
    "loss": lambda record: _epochs(record)[-1].train_loss,
    "top1": lambda record: _epochs(record)[-1].top1,
    "top5": lambda record: _epochs(record)[-1].top5,
}
