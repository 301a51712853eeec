"""The registry's metrics of a record: the source of every number on a page, in a table or in a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workbook.records import Record
from workbook.results import roofline
from workbook.results.from_result import value_of, why_none
from workbook.results.from_telemetry import OBSERVED, of_pass, why_not
from workbook.results.study_records import StudyRecords

IMAGES_OF_90_EPOCHS = 90 * 1_200_000  # Dell P100, last paragraph of "Performance Evaluation"
HOUR_S = 3600.0
PEAKS = ("memory_bytes", "framework_peak_bytes")  # properties of a configuration, which repeat from pass to pass
PEAK_REPEATS = 1.02
_OF_BUSY_TIME = ("device_images_per_s", "host_share")
NO_BURSTS = "no bursts: only short passes of eager loops under PyTorch on a GPU have them"
_WHY = {
    "launches_per_s": "only the launch_rate workload counts launches",
    "launch_rate_beside": NO_BURSTS,
    "launch_roof_flop_per_s": "it needs an eager loop on one GPU, a count of its kernels, and the pass's launch rate",
}


def metric_of(results: StudyRecords, record: Record, metric: str) -> float | None:
    """Return a metric of a record in SI units, from its blocks, facts or telemetry, or derived; None if it has none."""
    if record.status != "ok" or record.result is None:
        return None
    if metric in _DERIVED:
        return _DERIVED[metric](results, record)
    if metric in PEAKS and not _repeats(results, record, metric):
        return None
    return _own(results, record, metric)


def why_missing(results: StudyRecords, record: Record, metric: str) -> str:
    """Return why a record has no value of a metric."""
    if record.status != "ok":
        return f"{record.status}: {record.dated_reason}" if record.reason else record.status
    if metric == "cost_per_million_images" and results.profile.price_of(record.trial["device"]) is None:
        return (
            f"params/{results.profile.name}.yaml gives no price: add `cost` with `currency`, `per_hour` (`value` and "
            "`source`) and, for the CPU beside a GPU, `cpu_per_hour`"
        )
    if metric in PEAKS and not _repeats(results, record, metric):
        return "withdrawn: runs differ by more than 2 %, so the peak is partly that of other configurations"
    if metric == "stall_share" and record.trial["device"] == "cuda":
        return "the host queues steps ahead, so its waiting is not the GPU's: compare with resident images"
    if metric in _WHY:
        return _WHY[metric]
    trial = record.as_trial
    full = [other for other in results.ok(trial) if not other.short] if record.short else []
    if any(metric_of(results, other, metric) is not None for other in full):
        return "a short run only times: it has no sensors, trace or queries of its own"
    if metric == "roofline_fraction" and roofline.measured(results, trial, record.pass_number).flop_per_s is None:
        return f"no ceiling of {trial.precision.upper()} was measured"
    if metric in _OF_BUSY_TIME:
        on_gpu = record.trial["device"] == "cuda"
        return why_missing(results, record, "busy_step_s") if on_gpu else "a CPU is device and host in one"
    if metric not in OBSERVED:
        return why_none(record, metric)
    return why_not(results, metric, record.trial["device"], trial=trial)


def _own(results: StudyRecords, record: Record, metric: str) -> float | None:
    """Return a metric that the record holds, or that its telemetry gives: a short pass is too short for sensors."""
    value = value_of(record, metric)
    return value if value is not None or record.short else of_pass(results, record, metric)


def _repeats(results: StudyRecords, record: Record, metric: str) -> bool:
    """Return whether a peak of memory is that of the trial: then its passes agree within 2 %.

    Until 23 November 2026 a peak could include memory of trials that the same process had run before.
    """
    values = [value for other in results.ok(record.as_trial) if (value := _own(results, other, metric))]
    return not values or max(values) <= PEAK_REPEATS * min(values)


def _power_fraction(results: StudyRecords, record: Record) -> float | None:
    power_w, limit = _own(results, record, "power_w"), results.profile.device.board_power_w
    if power_w is None or limit is None or record.trial["device"] != results.profile.device.kind:
        return None
    return power_w / (limit.value * record.devices_used)  # of the boards that the trial used


def _images_per_s_per_device(_: StudyRecords, record: Record) -> float | None:
    rate = value_of(record, "images_per_s")
    return None if rate is None else rate / record.devices_used


def _device_images_per_s(_: StudyRecords, record: Record) -> float | None:
    """Return the images/s of a GPU that never waits for its host. Machines with equal GPUs agree on it."""
    busy_s, images = _busy_step_s(record), record.blocks.images_per_step if record.blocks else None
    return images / busy_s if busy_s and images else None


def _host_share(_: StudyRecords, record: Record) -> float | None:
    """Return the share of a step in which no kernel ran; 0 where concurrent kernels fill more than the step's time."""
    busy_s = _busy_step_s(record)
    return max(0.0, 1 - busy_s / record.blocks.step_s) if busy_s and record.blocks else None


def _busy_step_s(record: Record) -> float | None:
    return value_of(record, "busy_step_s") if record.trial["device"] == "cuda" else None


def _late_over_early(_: StudyRecords, record: Record) -> float | None:
    """Return images/s of the second half of the timed blocks over the first half; an odd middle block is left out."""
    times = record.blocks.host_s if record.blocks else []
    half = len(times) // 2
    return sum(times[:half]) / sum(times[-half:]) if half else None


def _between_blocks_share(_: StudyRecords, record: Record) -> float | None:
    """Return the share of the timed part that lies between blocks, in no block's time: losses and progress are read.

    None for a record with bursts between its blocks.
    """
    blocks = record.blocks
    if blocks is None or len(blocks.at_s) < 2 or blocks.launches_per_s:
        return None
    span_s = blocks.at_s[-1] + blocks.host_s[-1] - blocks.at_s[0]
    return max(0.0, 1 - blocks.timed_s / span_s) if span_s > 0 else None


def _training_90_epochs_s(_: StudyRecords, record: Record) -> float | None:
    rate = value_of(record, "images_per_s")
    return IMAGES_OF_90_EPOCHS / rate if rate else None


def _cost_per_million_images(results: StudyRecords, record: Record) -> float | None:
    """Return the cost in the profile's currency; a trial on some of its devices pays its share of the hour."""
    device = results.profile.device
    price, rate = results.profile.price_of(record.trial["device"]), value_of(record, "images_per_s")
    if price is None or not rate:
        return None
    share = record.devices_used / device.count if record.trial["device"] == device.kind else 1.0
    return 1e6 / rate * share * price.value / HOUR_S


def _roofline_fraction(results: StudyRecords, record: Record) -> float | None:
    """Return images/s over the bound by measured ceilings; None without one of the trial's precision."""
    rate, trial = value_of(record, "images_per_s"), record.as_trial
    ceilings, work = roofline.measured(results, trial, record.pass_number), roofline.work_of(results, trial)
    if rate is None or work is None or ceilings.flop_per_s is None:
        return None
    limit = roofline.bound(work, ceilings)
    return rate / limit.images_per_s if limit else None


def _fp32_utilisation(results: StudyRecords, record: Record) -> float | None:
    """Return FLOP done / (peak FLOP/s x elapsed time) in FP32 (CERN, 3.2). The peak is nominal, else measured."""
    rate, trial = value_of(record, "flop_per_s"), record.as_trial
    if rate is None or trial.precision != "fp32":
        return None
    peak = roofline.fp32_peak(results, trial, record.pass_number)
    return rate / (peak * record.devices_used) if peak else None


def _host_copy_share(results: StudyRecords, record: Record) -> float | None:
    """Return the share of a batch's time that its copies take: what the same trial of this pass saves without them."""
    trial = record.as_trial
    if trial.workload != "infer" or trial.copies != "included":
        return None
    without = {other.pass_number: other for other in results.ok(replace(trial, copies="excluded"))}
    same_pass = without.get(record.pass_number)
    rate, faster = (value_of(one, "images_per_s") if one else None for one in (record, same_pass))
    return max(1 - rate / faster, 0.0) if rate and faster else None  # below 0 by noise alone


_DERIVED: dict[str, Callable[[StudyRecords, Record], float | None]] = {
    "images_per_s_per_device": _images_per_s_per_device,
    "power_fraction": _power_fraction,
    "device_images_per_s": _device_images_per_s,
    "host_share": _host_share,
    "host_copy_share": _host_copy_share,
    "between_blocks_share": _between_blocks_share,
    "late_over_early": _late_over_early,
    "training_90_epochs_s": _training_90_epochs_s,
    "roofline_fraction": _roofline_fraction,
    "launch_roof_flop_per_s": roofline.launch_roof_flop_per_s,
    "cost_per_million_images": _cost_per_million_images,
    "fp32_utilisation": _fp32_utilisation,
}
