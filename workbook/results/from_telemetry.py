"""Metrics of one record's telemetry, and why a metric is missing.

A metric of several devices is their sum (power, energy, memory) or their mean (shares, clocks, temperature). Of several
nodes, telemetry covers only the first, so such a trial has no sums.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from labkit.sensors import GPU, HOST, KINDS, RAPL, rate_name
from labkit.telemetry.summary import EnergyWindow, Metrics, Telemetry, Window
from workbook.records import Record
from workbook.registry import INDEPENDENT_OF_HOST
from workbook.results import from_result
from workbook.results.in_time import check_in_time
from workbook.results.missing import Missing, or_none, over, present
from workbook.results.study_records import StudyRecords
from workbook.trials.trial import NO_DATA, OWN

# A window of traffic is as long as the timed part: the blocks and the gaps between them, in which nothing is exchanged.
# It begins under steady load. At its end the counter's last stretch is assumed to be even, which is wrong by at most a
# quarter of the time between two readings. With this many readings, a window's error is at most 5 %.
READINGS = 6  # least number in a window: a quarter of a sixth is 4 %


def _gradient_bytes(record: Record) -> float:
    """Return the bytes that a device sends in a step over the trial's interconnect.

    With several nodes, return the bytes that a node sends: a ring over all devices leaves each node once. Other traffic
    on the interconnect counts too. Through host memory the bytes are unknown: PCIe carries more than gradients.
    """
    _check_watched(record)
    steps = _steps(record)
    return (_between_nodes(record) if _nodes(record) > 1 else _within_node(record)) / steps


def _received_minus_sent_bytes(record: Record) -> float:
    """Return the bytes received minus sent by this node over the operating system's network in the timed part.

    Loopback traffic counts on both sides.
    """
    if _nodes(record) == 1:
        raise Missing("the configuration runs on one node")
    _check_watched(record)
    return _grown(record, HOST, "network_received_bytes") - _grown(record, HOST, "network_sent_bytes")


def _first_device_utilisation_ratio(record: Record) -> float:
    """Return the utilisation of the first device divided by the mean of the other devices."""
    _check_watched(record)
    sources = _timed(record).sources
    gpus = [name for name in sources if name.startswith(GPU) and name.removeprefix(GPU).isdecimal()]
    named = sorted(gpus, key=lambda name: int(name.removeprefix(GPU)))
    shares = [sources[name]["utilisation"].mean for name in named if "utilisation" in sources[name]]
    if lacking := _devices_here(record) - len(shares):
        raise Missing(f"the utilisation of {lacking} of its devices was not read")
    first, *others = shares
    if not others or fmean(others) <= 0:
        raise Missing("the other devices did nothing")
    return first / fmean(others)


FIGURES: dict[str, Callable[[Record], float]] = {
    "gradient_bytes": _gradient_bytes,
    "received_minus_sent_bytes": _received_minus_sent_bytes,
    "first_device_utilisation_ratio": _first_device_utilisation_ratio,
}


def _nodes(record: Record) -> int:
    return int(record.trial.get("nodes", 1))


def _devices_here(record: Record) -> int:
    return int(record.trial["devices"]) // _nodes(record)


def _check_watched(record: Record) -> None:
    if _devices_here(record) < 2 and _nodes(record) == 1:
        raise Missing("only runs on several devices have a value")
    if record.telemetry is None:
        raise Missing("the record holds no telemetry")
    if "timed" not in record.telemetry.windows:
        raise Missing(record.telemetry.reason or "telemetry has no timed part")


def _timed(record: Record) -> Window:
    assert record.telemetry is not None
    return record.telemetry.windows["timed"]


def _steps(record: Record) -> int:
    """Return the number of steps in the window."""
    blocks = record.blocks
    if blocks is None:
        raise Missing("only timed blocks of steps have this figure")
    if blocks.energy_blocks and len(blocks.energy_blocks) > 1:
        raise Missing("steps between energy windows are not counted")
    return blocks.steps_per_block * len(blocks.host_s)


def _within_node(record: Record) -> float:
    """Return the bytes that a device sends to others of its node, on average."""
    devices, way = _devices_here(record), record.trial.get("interconnect", "direct")
    if record.trial["device"] == "cpu" or way == "sockets":
        return _grown(record, HOST, "loopback_sent_bytes") / devices
    if way == "host":
        raise Missing("what goes through the host's memory has no counter of its own")
    names = [name for name in _timed(record).sources if name.startswith(GPU)]
    if len(names) < devices:
        raise Missing(f"{devices - len(names)} of its devices were not read")
    sent = [_grown(record, name, "nvlink_sent_bytes") for name in names]
    if not any(sent):
        raise Missing("nothing went over NVLink: the devices exchange in another way")
    return sum(sent) / devices


def _between_nodes(record: Record) -> float:
    """Return the bytes that a node sends to others, over Ethernet, InfiniBand or (`any`) both, as far as present."""
    network = record.trial.get("network", "any")
    if network == "infiniband":
        return _grown(record, HOST, "infiniband_sent_bytes")
    ethernet = _grown(record, HOST, "network_sent_bytes") - _grown(record, HOST, "loopback_sent_bytes")
    if network == "ethernet":
        return ethernet
    return ethernet + (or_none(_grown, record, HOST, "infiniband_sent_bytes") or 0)


def _grown(record: Record, source: str, counter: str) -> float:
    """Return the growth of a counter in the timed part; raise Missing without enough readings."""
    assert record.telemetry is not None
    rate = record.telemetry.statistic("timed", source, rate_name(counter))
    if rate is None:
        why = record.telemetry.missing.get(source, {}).get(counter)
        raise Missing(why or f"{counter} of {source} was not read all around the timed part")
    if rate.n < READINGS:
        raise Missing(
            f"the timed part is short beside the time between two readings ({rate.n} in it, {READINGS} are needed)"
        )
    return rate.mean * _timed(record).length_s


OF_IMAGES = {"energy_per_image_j", "net_energy_per_image_j", "images_per_s_per_w"}
OF_SAMPLES = {"energy_per_sample_j", "energy_per_token_j"}
OF_ENERGY = {"energy_per_image_j", "net_energy_per_image_j", *OF_SAMPLES}
OF_METERS = {"power_w", "energy_j", *OF_IMAGES, *OF_SAMPLES}  # on a CPU only where its energy can be read
SUMMED = frozenset({"power_w", "power_smi_w", "memory_bytes"})
METRICS = frozenset({*KINDS, *OF_METERS, *FIGURES, "power_readings"})
OF_HOST = frozenset({"cpu_utilisation", "cpu_clock_hz", "cpu_temperature_c", "cpu_steal"})
NO_SENSOR = "a CPU has no such sensor"


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


def value(results: StudyRecords, record: Record, metric: str) -> float:
    """Return a metric of telemetry in one pass, in SI units. Raise Missing if it was not read."""
    if metric in OF_IMAGES and record.trial["data"] == NO_DATA:
        raise Missing("this workload has no images")
    if metric in OF_SAMPLES and record.trial["workload"] not in OWN:
        raise Missing("its samples are images")
    if metric == "energy_per_token_j":
        return value(results, record, "energy_per_sample_j") / from_result.tokens_of(record)
    if metric == "cpu_clock_hz" and results.has_fixed_cpu_clock:
        raise Missing("not readable here: the clock never changes, so it is the nominal one")
    if metric == "images_per_s_per_w":
        power_w = value(results, record, "power_w")
        return over(from_result.value(record, "images_per_s"), power_w)
    if metric in FIGURES:
        return FIGURES[metric](record)
    number = _number(record, metric)
    if number is None:
        raise Missing(_why_unread(results, record, metric))
    if metric not in INDEPENDENT_OF_HOST:
        check_in_time(record)
    if metric == "net_energy_per_image_j":
        # An idle trial holds the device without any work.
        idle = [
            other
            for trial in results.trials(workload="idle", device=record.trial["device"])
            for other in results.ok(trial)
        ]
        watts = [or_none(value, results, other, "power_w") for other in idle if other.pass_number == record.pass_number]
        above_w = present(watts[0] if watts else None, "the power of the idle device was not read in the same run")
        return present(_energy_per_image(record, above_w=above_w))
    return number


def _number(record: Record, metric: str) -> float | None:
    """Return a metric that a pass's telemetry alone gives, and the energy of an image above that of no device."""
    on_gpu = record.trial["device"] == "cuda"
    if metric in ("energy_per_image_j", "net_energy_per_image_j", "energy_per_sample_j"):
        return _energy_per_image(record, above_w=0.0)
    if metric == "power_readings":
        metrics = _sources(record.telemetry, "power_w", "timed")
        counts = [of["power_w"].n for of in metrics if "power_w" in of]
        return float(min(counts)) if counts and on_gpu else None
    if metric == "power_w" and not on_gpu:
        return None if record.telemetry is None or _over_nodes(record) else _rapl_power(record.telemetry)
    statistics = of_record(record, metric, "timed")
    return None if statistics is None else statistics[0]


def _energy_per_image(record: Record, *, above_w: float) -> float | None:
    """Return the joules per image over all energy windows of a pass; None if a window has no energy."""
    telemetry = record.telemetry
    if telemetry is None or not telemetry.energy or _over_nodes(record):
        return None
    joules, images = 0.0, 0
    for window in telemetry.energy:
        of_meters = _joules(window, on_gpu=record.trial["device"] == "cuda")
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


def _why_unread(results: StudyRecords, record: Record, metric: str) -> str:
    """Return why a pass has no reading: what the machine lacks comes first, because it holds for every pass."""
    on_gpu, telemetry = record.trial["device"] == "cuda", record.telemetry
    meter = HOST if metric in OF_HOST else GPU if on_gpu else RAPL
    names = {metric, "*"} | (OF_METERS if metric in OF_METERS else set())
    reasons = {why for (source, name), why in results.unreadable.items() if name in names and source.startswith(meter)}
    if reasons:
        return "; ".join(sorted(reasons))
    if telemetry and telemetry.status == "lost":
        return telemetry.reason or "unknown"
    if not on_gpu and metric not in OF_HOST:
        return NO_SENSOR
    if telemetry is None:
        return "the record holds no telemetry"
    if metric in OF_ENERGY and not record.as_trial.energy_windows:
        return "no energy windows were asked for"
    return "nothing was read"
