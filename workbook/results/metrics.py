"""The registry's metrics of a record: the source of every number on a page, in a table or in a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean

from workbook.records import Record
from workbook.records.after_traces import launched_slowly, waits_for_launches
from workbook.registry import INDEPENDENT_OF_HOST
from workbook.results import from_result, from_telemetry, from_trace, roofline
from workbook.results.from_trace import memory_of
from workbook.results.in_time import SLOWED, blocks_in_time
from workbook.results.missing import Missing, or_none, over, present, why_none
from workbook.results.study_records import StudyRecords
from workbook.trials.trial import OWN
from workbook.words import label

IMAGES_OF_90_EPOCHS = 90 * 1_200_000  # Dell P100, last paragraph of "Performance Evaluation"
HOUR_S = 3600.0
PEAKS = ("memory_bytes", "framework_peak_bytes")  # properties of a configuration, which repeat from pass to pass
PEAK_REPEATS = 1.02
CHECK_COLLECTED = "2026-11-29T14"  # UTC; since then the peak begins without the networks of the correctness check
OF_SHORT = "a short run only times: it has no sensors, trace or queries of its own"


def metric_of(results: StudyRecords, record: Record, metric: str) -> float | None:
    """Return a metric of a record in SI units, from its blocks, facts or telemetry, or derived; None if it has none."""
    return or_none(value, results, record, metric)


def why_missing(results: StudyRecords, record: Record, metric: str) -> str:
    """Return why a record has no value of a metric; an empty text if it has one."""
    reason = why_none(value, results, record, metric)
    full = [other for other in results.ok(record.as_trial) if not other.short] if reason and record.short else []
    if record.status == "ok" and any(metric_of(results, other, metric) is not None for other in full):
        return OF_SHORT
    return reason


def value_or_reason(results: StudyRecords, record: Record, metric: str) -> tuple[float | None, str]:
    """Return a metric of a record in SI units and an empty text, or None and why it has no value."""
    try:
        return value(results, record, metric), ""
    except Missing as missing:
        return None, why_missing(results, record, metric) if record.short else str(missing)


def value(results: StudyRecords, record: Record, metric: str) -> float:
    """Return a metric of a record in SI units. Raise Missing with the reason if it has none."""
    if record.status != "ok":
        raise Missing(record.failure)
    if record.result is None:
        raise Missing
    _check_by_one_gpu(results, record, metric)
    return _DERIVED[metric](results, record) if metric in _DERIVED else _own(results, record, metric)


# Metrics of a single step: neither the length of the timed part nor a sensor changes them.
OF_STEP = frozenset(
    {
        *("images_per_s", "samples_per_s", "tokens_per_s", "step_s", "flop_per_s", "bytes_per_s", "weight_read_share"),
        *from_trace.METRICS,
    }
)
# Fields that decide how long a step's kernels run, and how many the host launches.
_SAME_STEP = ("model", "image_px", "precision", "engine", "framework", "memory_format", "optimizer")
# Metrics without the time of a step: also what a trace alone tells, and what is done before the first step.
_WITHOUT_STEPS = frozenset(
    {
        *(INDEPENDENT_OF_HOST | from_trace.METRICS) - from_trace.OVER_STEP,
        *("device_images_per_s", "compile_s", "trace_s", "capture_s", "time_to_first_step_s", "first_prediction_s"),
        *from_result.CACHED,
    }
)


def _check_by_one_gpu(results: StudyRecords, record: Record, metric: str) -> None:
    """Raise Missing if an earlier trace may have delayed steps that have no trace of their own to tell.

    These are steps on several GPUs and of training runs. Steps of the same network on one GPU tell instead.
    """
    if metric in _WITHOUT_STEPS or launched_slowly(record) is not None:
        return
    trial = record.as_trial
    same = {name: getattr(trial, name) for name in _SAME_STEP}
    alike = [one for one in results.trials(**same, devices=1) if one.batch_of_device == trial.batch_of_device]
    of_one = {waits_for_launches(other) for one in alike for other in results.ok(one)}
    was_traced = record.epochs or record.devices_used > 1  # on one GPU, the driver let no step be traced
    if was_traced and (False not in of_one or True in of_one):  # a short run has no trace that tells
        raise Missing(SLOWED)


def _own(results: StudyRecords, record: Record, metric: str) -> float:
    """Return a metric that the record holds, or that its telemetry gives: a short pass is too short for sensors."""
    try:
        return from_result.value(record, metric)
    except Missing:
        if metric not in from_telemetry.METRICS:
            raise
    number = from_telemetry.value(results, record, metric)
    return present(None if record.short else number, OF_SHORT)


def _peak(results: StudyRecords, record: Record, metric: str) -> float:
    """Return a peak of memory if it is that of the trial: then its passes agree within 2 %.

    Until 23 November 2026 a peak could include memory of trials that the same process had run before.
    """
    if _includes_check(record):
        raise Missing("withdrawn: it exceeds the traced step's memory by what the correctness check had left")
    sound = [other for other in results.ok(record.as_trial) if not _includes_check(other)]
    peaks = [peak for other in sound if (peak := or_none(_own, results, other, metric))]
    if peaks and max(peaks) > PEAK_REPEATS * min(peaks):
        raise Missing("withdrawn: runs differ by more than 2 %, so the peak is partly that of other configurations")
    return _own(results, record, metric)


def _includes_check(record: Record) -> bool:
    """Return whether a GPU's peak exceeds the traced step's memory, as it could until `CHECK_COLLECTED`."""
    if record.trial["workload"] not in OWN or record.trial["device"] == "cpu" or record.started_at >= CHECK_COLLECTED:
        return False
    parts = memory_of(record)
    return "workspace" in parts and record.facts.get("memory_bytes", 0) > PEAK_REPEATS * sum(parts.values())


def _power_fraction(results: StudyRecords, record: Record) -> float:
    device, kind = results.profile.device, record.trial["device"]
    no_limit = f"params/{results.profile.name}.yaml gives no `board_power_w`"
    reason = from_telemetry.NO_SENSOR if kind == "cpu" else no_limit
    limit = present(device.board_power_w if kind == device.kind else None, reason)
    # of the boards that the trial used
    return _own(results, record, "power_w") / (limit.value * record.devices_used)


def _device_images_per_s(_: StudyRecords, record: Record) -> float:
    """Return the images/s of a GPU that never waits for its host. Machines with equal GPUs agree on it."""
    busy_s = _busy_step_s(record)
    return over((from_result.images_of(record) or None) if record.blocks else None, busy_s)


def _host_share(results: StudyRecords, record: Record) -> float:
    """Return the share of a step in which no kernel ran; 0 where concurrent kernels fill more than the step's time.

    A run without a trace has the kernels' time of other runs, which agree on it within 1 %.
    """
    step_s = blocks_in_time(record).step_s if record.blocks else None
    try:
        busy_s = _busy_step_s(record)
    except Missing:
        traced = [or_none(_busy_step_s, other) for other in results.ok(record.as_trial)]
        if not (known := [other_s for other_s in traced if other_s is not None]):
            raise
        busy_s = fmean(known)
    return max(0.0, 1 - busy_s / present(step_s if busy_s else None))


def _busy_step_s(record: Record) -> float:
    if record.trial["device"] != "cuda":
        raise Missing("a CPU is device and host in one")
    return from_result.value(record, "busy_step_s")


def _late_over_early(_: StudyRecords, record: Record) -> float:
    """Return images/s of the second half of the timed blocks over the first half; an odd middle block is left out."""
    times = record.blocks.host_s if record.blocks else []
    half = len(times) // 2
    return over(sum(times[:half]), sum(times[-half:]) if half else None)


def _between_blocks_share(_: StudyRecords, record: Record) -> float:
    """Return the share of the timed part that lies between blocks, in no block's time: losses and progress are read.

    Raise Missing for a record with bursts between its blocks.
    """
    blocks = record.blocks
    if blocks is None or len(blocks.at_s) < 2 or blocks.launches_per_s:
        raise Missing
    span_s = blocks.at_s[-1] + blocks.host_s[-1] - blocks.at_s[0]
    return max(0.0, 1 - over(blocks.timed_s, max(span_s, 0.0)))


def _cost_per_million_images(results: StudyRecords, record: Record) -> float:
    """Return the cost in the profile's currency; a trial on some of its devices pays its share of the hour."""
    device = results.profile.device
    price = present(
        results.profile.price_of(record.trial["device"]),
        f"prices.yaml has no price of {results.profile.name if record.trial['device'] == device.kind else 'cpu'}: "
        "prices.example.yaml has the form",
    )
    share = record.devices_used / device.count if record.trial["device"] == device.kind else 1.0
    return over(1e6, from_result.value(record, "images_per_s")) * share * price.value / HOUR_S


def _roofline_fraction(results: StudyRecords, record: Record) -> float:
    """Return images/s over the bound by measured ceilings. Raise Missing without one of the trial's precision."""
    rate, trial = from_result.value(record, "images_per_s"), record.as_trial
    ceilings, work = roofline.measured(results, trial, record.pass_number), roofline.work_of(results, trial)
    if ceilings.flop_per_s is None:
        raise Missing(f"this study measured no ceiling of {label('precision', trial.precision)} here")
    limit = roofline.bound(work, ceilings) if work else None
    return over(rate, limit.images_per_s if limit else None)


def _weight_read_share(results: StudyRecords, record: Record) -> float:
    """Return the bytes/s of weights over those of a copy in memory, which reads and writes. A prediction reads all."""
    if record.trial["workload"] != "own_prediction":
        raise Missing("only a prediction of a network in samples reads its weights once")
    ceilings = roofline.measured(results, record.as_trial, record.pass_number)
    weights = present(record.number("weight_traffic_bytes_per_step"))
    return over(weights / from_result.value(record, "step_s"), ceilings.bytes_per_s)


def _fp32_utilisation(results: StudyRecords, record: Record) -> float:
    """Return FLOP done / (peak FLOP/s x elapsed time) in FP32 (CERN, 3.2). The peak is nominal, else measured."""
    rate, trial = from_result.value(record, "flop_per_s"), record.as_trial
    if trial.precision != "fp32":
        raise Missing
    peak = roofline.fp32_peak(results, trial, record.pass_number)
    return rate / (present(peak or None, "this study measured no ceiling of FP32 here") * record.devices_used)


def _host_copy_share(results: StudyRecords, record: Record) -> float:
    """Return the share of a batch's time that its copies take: what the same trial of this pass saves without them."""
    trial = record.as_trial
    if trial.workload != "infer" or trial.copies != "included":
        raise Missing
    without = {other.pass_number: other for other in results.ok(replace(trial, copies="excluded"))}
    same_pass = present(without.get(record.pass_number), "no prediction without copies was timed in the same run")
    rate, faster = (from_result.value(each, "images_per_s") for each in (record, same_pass))
    return max(1 - over(rate, faster), 0.0)  # below 0 by noise alone


_DERIVED: dict[str, Callable[[StudyRecords, Record], float]] = {
    **{name: partial(_peak, metric=name) for name in PEAKS},
    "images_per_s_per_device": lambda _, record: from_result.value(record, "images_per_s") / record.devices_used,
    "power_fraction": _power_fraction,
    "device_images_per_s": _device_images_per_s,
    "host_share": _host_share,
    "host_copy_share": _host_copy_share,
    "between_blocks_share": _between_blocks_share,
    "late_over_early": _late_over_early,
    "training_90_epochs_s": lambda _, record: over(IMAGES_OF_90_EPOCHS, from_result.value(record, "images_per_s")),
    "roofline_fraction": _roofline_fraction,
    "weight_read_share": _weight_read_share,
    "cost_per_million_images": _cost_per_million_images,
    "cost_of_90_epochs": lambda results, record: IMAGES_OF_90_EPOCHS / 1e6 * _cost_per_million_images(results, record),
    "fp32_utilisation": _fp32_utilisation,
}
