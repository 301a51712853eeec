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
from workbook.results.in_time import check_in_time
from workbook.results.missing import Missing, or_none, over, present
from workbook.trials.trial import OWN

GROUPS_COUNTED = "2026-11-29T14"  # UTC; since then the FLOP of a grouped convolution's gradient are counted by group
WITHOUT_GROUPS = ("resnet50", "vit_b_16", "swin_t", "gpt2_124m")  # of the networks of today that train


def value_of(record: Record, metric: str) -> float | None:
    """Return a metric of a record in SI units; None if the record does not have it."""
    return or_none(value, record, metric)


def value(record: Record, metric: str) -> float:
    """Return a metric of a record in SI units. Raise Missing if the record does not have it."""
    if record.result is None or (metric in CACHED and not took_from_cache(record)):
        raise Missing
    any_value = _value(record, CACHED.get(metric, metric))
    if metric in CACHED.values() and took_from_cache(record):
        raise Missing(f"the compiler's cache had the programs: see cached_{metric}")
    return any_value


def _value(record: Record, metric: str) -> float:
    """Return a metric of a record whether or not its compiler took programs from its cache on the disk."""
    if record.epochs and metric in OF_TIME and not record.as_trial.has_time:
        raise Missing("its devices share or repeat work, so its seconds are those of no device")
    of_result = _OF_BLOCKS if record.blocks else _OF_EPOCHS if record.epochs else from_reads.FIGURES
    derive = of_result.get(metric) or _OF_ANY.get(metric)
    if derive:
        number = present(derive(record))
        if metric in OF_STEPS:
            check_in_time(record)
        return number
    if metric in PREPARATIONS:
        return present(record.phases_s.get(PREPARATIONS[metric]))
    return present(record.number(metric))


# What compiling takes again once the compiler's cache on the disk has programs -> what it takes the first time.
CACHED = {f"cached_{name}": name for name in ("compile_s", "time_to_first_step_s", "first_prediction_s")}


def took_from_cache(record: Record) -> bool:
    """Return whether the compiler took programs of this trial from its cache on the disk."""
    regions = record.facts.get("compiled_regions")
    return bool(isinstance(regions, dict) and regions.get("from the cache"))


# One-time work of an engine before a trial is timed; the worker times each part separately.
PREPARATIONS = {"trace_s": "trace", "compile_s": "compile", "capture_s": "capture"}
BEFORE_PREDICTING = ("convert", "calibrate", "compile", "capture")


def _epoch_s(record: Record) -> float:
    """Return the seconds of one epoch of the training images, at the throughput of the timed blocks."""
    return over(record.number("train_images") or None, value(record, "images_per_s"))


NO_BURSTS = "no bursts: only short runs of eager loops under PyTorch on a GPU have them"
PERCENTILES = {"latency_s": 0.5, "latency_p90_s": 0.9, "latency_p99_s": 0.99, "latency_p999_s": 0.999}
BEYOND = 2  # queries that must lie beyond a percentile; with fewer, chance decides it


def _latency_s(record: Record, share: float) -> float:
    """Return the latency that this share of queries kept (nearest rank)."""
    queries = _blocks(record).queries
    if queries is None:
        raise Missing
    ordered = sorted(queries.latency_ns)
    rank = math.ceil(round(share * len(ordered), 6))
    if len(ordered) - rank < BEYOND:
        raise Missing("too few batches were timed one at a time for this percentile")
    return ordered[rank - 1] / 1e9


def _first_prediction_s(record: Record) -> float:
    """Return the seconds to the first prediction: build, convert, calibrate, compile, capture and the first step."""
    if record.trial["workload"] != "infer":
        raise Missing
    calibration = record.facts.get("calibration")
    if isinstance(calibration, dict) and calibration.get("shared"):
        raise Missing("an earlier configuration of the process had calibrated the network")
    build_s, first_s = (present(record.number(name)) for name in ("build_s", "first_step_s"))
    return float(build_s + first_s + sum(record.phases_s.get(name, 0.0) for name in BEFORE_PREDICTING))


def _time_to_first_step_s(record: Record) -> float:
    """Return the seconds of building a training's network and its first step, without loading the framework.

    The first step's seconds are the workload's fact `first_step_s`, else the sum of the phases that the worker timed:
    trace, compile, capture, and the step. For compiled PyTorch, later steps of the correctness check do not count.
    """
    if record.trial["workload"] != "train":  # inference has `first_prediction_s`
        raise Missing
    build_s, first_s = record.number("build_s"), record.number("first_step_s")
    if build_s is None:
        build_s = present(record.phases_s.get("build"))
    if first_s is None:
        first_s = sum(record.phases_s.get(name, 0.0) for name in PREPARATIONS.values())
        if not first_s or record.framework != "torch":  # else compiling and capturing run its first steps
            first_s += present(record.phases_s.get("first_step"))
    return build_s + first_s


def _framework_peak_bytes(record: Record) -> float | None:
    """Return the peak of the framework's counter of GPU memory."""
    if record.trial["device"] != "cuda":
        raise Missing("the framework counts the memory of GPUs only")
    return record.number("memory_bytes")


def images_of(record: Record) -> int | None:
    """Return the images of a step. Raise Missing for a network of the user, whose samples need not be images."""
    if record.trial["workload"] in OWN:
        raise Missing("its samples need not be images: see samples_per_s")
    return _blocks(record).images_per_step


def samples_of(record: Record) -> int:
    """Return the samples of a step of the user's network. Raise Missing for another workload."""
    if record.trial["workload"] not in OWN:
        raise Missing("its samples are images: see images_per_s")
    return present(_blocks(record).images_per_step)


def tokens_of(record: Record) -> int:
    """Return the tokens of a sample. Raise Missing if the network's file does not say how many it has."""
    return int(
        present(
            record.number("tokens_per_sample"),
            "its samples are no texts (`tokens_per_sample` was not given)",
        )
    )


def flop_of(record: Record) -> int | None:
    """Return the FLOP of a step; None if they are unknown. Raise Missing for a count of before `GROUPS_COUNTED`."""
    is_own = record.trial["workload"] == OWN[0] and record.trial["model"] not in WITHOUT_GROUPS
    if is_own and record.started_at < GROUPS_COUNTED:
        raise Missing("withdrawn: PyTorch counts a grouped convolution's gradient as that of a dense one")
    return _blocks(record).flop_per_step


# Of any result: each function says why a result lacks its metric.
_OF_ANY: dict[str, Callable[[Record], float | None]] = {
    "launches_per_s": lambda record: present(
        record.blocks.rate(record.blocks.launches_per_step) if record.blocks else None,
        "only the launch_rate workload counts launches",
    ),
    "launch_rate_beside": lambda record: fmean(
        present((record.blocks.launches_per_s or None) if record.blocks else None, NO_BURSTS)
    ),
    "stall_share": from_reads.stall_share,
    **{name: partial(traced.value, metric=name) for name in traced.METRICS},
}
_OF_BLOCKS: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: _blocks(record).rate(images_of(record)),
    "samples_per_s": lambda record: _blocks(record).rate(samples_of(record)),
    "tokens_per_s": lambda record: _blocks(record).rate(samples_of(record) * tokens_of(record)),
    "flop_per_s": lambda record: _blocks(record).rate(flop_of(record)),
    "bytes_per_s": lambda record: _blocks(record).rate(_blocks(record).bytes_per_step),
    "step_s": lambda record: _blocks(record).step_s,
    "flop_per_step": flop_of,
    "epoch_s": _epoch_s,
    # until each job of a trial has seen the training images once
    "run_s": lambda record: _epoch_s(record) * (record.number("jobs") or 1),
    "first_prediction_s": _first_prediction_s,
    "time_to_first_step_s": _time_to_first_step_s,
    "framework_peak_bytes": _framework_peak_bytes,
    "top1": lambda record: _share(record, "top1"),
    "top5": lambda record: _share(record, "top5"),
    **{name: partial(_latency_s, share=share) for name, share in PERCENTILES.items()},
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


def _epochs_to_target(record: Record) -> float:
    """Return the epochs until the validation accuracy reached the target, interpolated linearly between two epochs.

    Before the first epoch the accuracy is chance.
    """
    target = float(record.trial.get("target_top1", 0.0))
    if not target:
        raise Missing
    before = 1 / int(record.trial["classes"])
    for number, epoch in enumerate(_epochs(record), start=1):
        if epoch.top1 >= target:
            return number - (epoch.top1 - target) / (epoch.top1 - before) if target > before else float(number)
        before = epoch.top1
    raise Missing("the target was not reached")


OF_TIME = ("images_per_s", "step_s", "epoch_s", "run_s")  # times and rates of a training run
OF_RATES = ("samples_per_s", "tokens_per_s", "flop_per_s", "bytes_per_s", "launches_per_s")
OF_STEPS = frozenset((*OF_TIME, *OF_RATES, *PERCENTILES))  # of steps that the host launches one by one
# Of a training run: times and rates over the whole run, loss and accuracy after the last epoch.
_OF_EPOCHS: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: sum(e.images for e in _epochs(record)) / sum(e.train_s for e in _epochs(record)),
    "step_s": lambda record: sum(e.train_s for e in _epochs(record)) / sum(e.steps for e in _epochs(record)),
    "epoch_s": lambda record: sum(e.train_s for e in _epochs(record)) / len(_epochs(record)),
    "run_s": lambda record: sum(e.train_s + e.val_s for e in _epochs(record)),
    "epochs_to_target": _epochs_to_target,
    "loss": lambda record: _epochs(record)[-1].train_loss,
    "top1": lambda record: _epochs(record)[-1].top1,
    "top5": lambda record: _epochs(record)[-1].top5,
}
