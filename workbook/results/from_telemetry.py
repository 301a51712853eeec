"""Metrics of one record's telemetry, and why a metric is missing.

A metric of several devices is their sum (power, energy, memory) or their mean (shares, clocks, temperature). Of several
nodes, telemetry covers only the first, so such a trial has no sums.
"""

from __future__ import annotations

from statistics import fmean

from labkit.sensors import GPU, HOST, KINDS, RAPL
from labkit.telemetry.summary import EnergyWindow, Metrics, Telemetry
from workbook.records import Record
from workbook.results import from_trace, from_traffic
from workbook.results.from_result import value_of
from workbook.results.study_records import StudyRecords
from workbook.trials.trial import NO_DATA, Trial

OF_IMAGES = {"energy_per_image_j", "net_energy_per_image_j", "images_per_s_per_w"}
OF_METERS = {"power_w", "energy_j", *OF_IMAGES}  # on a CPU only where its energy can be read
SUMMED = frozenset({"power_w", "power_smi_w", "memory_bytes"})
OF_GPU = {"power_readings", "power_fraction", "framework_peak_bytes"}
OBSERVED = frozenset({*KINDS, *OF_METERS, *OF_GPU})
OBSERVED |= {*from_trace.METRICS, *from_traffic.FIGURES}  # `why_not` says why a record lacks one of them
OF_HOST = frozenset({"cpu_utilisation", "cpu_clock_hz", "cpu_temperature_c", "cpu_steal"})


def of_record(record: Record, metric: str, window: str) -> tuple[float, float, float] | None:
    """Return (mean, low, high) of a metric over the record's devices; None also if one device lacks the metric.

    The timed part of a short pass has none: it is too short, and bursts of tiny operations may lie between its blocks.
    """
    if record.short and window in ("timed", "polled"):
        return None
    of_sources = _sources(record.telemetry, metric, window)
    statistics = [metrics[metric] for metrics in of_sources if metric in metrics]
    part = _over_nodes(record) and metric in SUMMED
    if not statistics or part or (metric not in OF_HOST and len(statistics) < _devices(record.telemetry)):
        return None
    join = sum if metric in SUMMED else fmean
    low = join([each.low for each in statistics]) if metric in SUMMED else min(each.low for each in statistics)
    high = join([each.high for each in statistics]) if metric in SUMMED else max(each.high for each in statistics)
    return float(join([each.mean for each in statistics])), float(low), float(high)


def _over_nodes(record: Record) -> bool:
    return bool(record.trial.get("nodes", 1) > 1)


def _sources(telemetry: Telemetry | None, metric: str, window: str) -> list[Metrics]:
    if telemetry is None:
        return []
    if window == "polled":
        by_source = telemetry.polled
    elif window in telemetry.windows:
        by_source = telemetry.windows[window].sources
    else:
        return []
    return [metrics for source, metrics in by_source.items() if source.startswith(HOST if metric in OF_HOST else GPU)]


def _devices(telemetry: Telemetry | None) -> int:
    """Return the number of sampled devices, including devices without any reading."""
    if telemetry is None:
        return 0
    sources = {source for window in telemetry.windows.values() for source in window.sources} | set(telemetry.missing)
    return len({source for source in sources if source.startswith(GPU)})


def of_pass(results: StudyRecords, record: Record, metric: str) -> float | None:
    """Return a metric of telemetry in one pass, in SI units; None if it was not read."""
    on_gpu = record.trial["device"] == "cuda"
    if metric == "energy_per_image_j":
        return _energy_per_image(record, above_w=0.0, on_gpu=on_gpu)
    if metric == "net_energy_per_image_j":
        idle_w = _idle_power(results, record.pass_number, record.trial["device"])
        return None if idle_w is None else _energy_per_image(record, above_w=idle_w, on_gpu=on_gpu)
    if metric == "images_per_s_per_w":
        rate, power = value_of(record, "images_per_s"), of_pass(results, record, "power_w")
        return rate / power if rate is not None and power else None
    if metric == "power_readings":
        read = [
            statistics["power_w"].n
            for statistics in _sources(record.telemetry, "power_w", "timed")
            if "power_w" in statistics
        ]
        return float(min(read)) if read and on_gpu else None
    if metric == "power_w" and not on_gpu:
        return None if record.telemetry is None or _over_nodes(record) else _rapl_power(record.telemetry)
    if metric in from_traffic.FIGURES:
        return from_traffic.value(record, metric)
    if metric == "cpu_cores_used":
        return value_of(record, metric)
    if metric == "cpu_clock_hz" and results.has_fixed_cpu_clock:
        return None
    statistics = of_record(record, metric, "timed")
    return None if statistics is None else statistics[0]


def _idle_power(results: StudyRecords, pass_number: int, device: str) -> float | None:
    """Return the watts of the idle trial of the same pass, in which a process holds the device without any work."""
    for trial in results.trials(workload="idle", device=device):
        for record in results.ok(trial):
            if record.pass_number == pass_number:
                return of_pass(results, record, "power_w")
    return None


def _energy_per_image(record: Record, *, above_w: float, on_gpu: bool) -> float | None:
    """Return the joules per image over all energy windows of a pass; None if a window has no energy."""
    telemetry = record.telemetry
    if telemetry is None or not telemetry.energy or _over_nodes(record):
        return None
    joules, images = 0.0, 0
    for window in telemetry.energy:
        of_meters = _joules(window, on_gpu=on_gpu)
        if not of_meters or window.images is None or None in of_meters:
            return None
        joules += sum(value for value in of_meters if value is not None) - above_w * window.length_s
        images += window.images
    return joules / images if images else None


def _joules(window: EnergyWindow, *, on_gpu: bool) -> list[float | None]:
    """Return the joules of each meter of a trial's devices: its GPUs, or the processor packages.

    A package includes its parts (`package-0/dram`), and `psys` includes the package, so neither is added.
    """
    return [
        value
        for source, value in window.energy_j.items()
        if (source.startswith(GPU) if on_gpu else source.startswith(f"{RAPL}package") and "/" not in source)
    ]


def _rapl_power(telemetry: Telemetry) -> float | None:
    seconds = sum(window.length_s for window in telemetry.energy)
    joules = [value for window in telemetry.energy for value in _joules(window, on_gpu=False)]
    return sum(v for v in joules if v is not None) / seconds if joules and None not in joules and seconds else None


def _missing(results: StudyRecords) -> dict[tuple[str, str], str]:
    """Return (source, metric) -> the first reason why this machine could not read the metric."""
    every = (record.telemetry.missing for record in reversed(results.records) if record.telemetry)
    return {
        (source, metric): reason
        for missing in every
        for source, reasons in missing.items()
        for metric, reason in reasons.items()
    }


def why_not(results: StudyRecords, metric: str, device: str | None = None, *, trial: Trial | None = None) -> str:
    """Return why a metric has no value, in a few words, on `device` (`cuda`, `cpu`; default: the profile's).

    Reasons that depend on the trial are those of `trial`, or else of all trials.
    """
    if trial and trial.data == NO_DATA and metric in OF_IMAGES:
        return "this workload has no images"
    records = results.ok(trial) if trial else [record for record in results.records if record.status == "ok"]
    if records and metric in from_traffic.FIGURES:
        return "; ".join(sorted({reason for record in records if (reason := from_traffic.why_not(record, metric))}))
    if records and metric in from_trace.METRICS:
        return "; ".join(sorted({from_trace.why_no_trace(record, metric) for record in records}))
    recorded = [record.telemetry for record in results.records if record.telemetry]
    lost = {telemetry.reason or "unknown" for telemetry in recorded if telemetry.status == "lost"}
    if lost and all(telemetry.status == "lost" for telemetry in recorded):
        return "; ".join(sorted(lost))
    if metric == "cpu_clock_hz" and results.has_fixed_cpu_clock:
        return "not readable here: the clock never changes, so it is the nominal one"
    on_gpu = (device or results.profile.device.kind) == "cuda"
    meter = HOST if metric in OF_HOST else GPU if on_gpu else RAPL
    names = {metric, "*"} | (OF_METERS if metric in OF_METERS else set())
    reasons = {why for (source, name), why in _missing(results).items() if name in names and source.startswith(meter)}
    if reasons or lost:
        return "; ".join(sorted(reasons or lost))
    if not on_gpu and metric not in OF_HOST:
        return "a CPU has no such sensor"
    if records and all(record.telemetry is None for record in records):
        return "these records hold no telemetry"
    if trial and metric.endswith("_per_image_j") and not trial.energy_windows:
        return "no energy windows were asked for"
    if metric == "net_energy_per_image_j":
        return "the power of the idle device was not read in the same run"
    return "nothing was read" if results else "nothing was measured"
