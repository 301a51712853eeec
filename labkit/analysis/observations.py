"""What telemetry says of a trial, over its passes: means with intervals, extremes, energy, flags, and what is missing.

A metric of several devices is their sum (power, energy, memory) or their mean (shares, clocks, temperature). Of several
nodes only the first is watched: such a trial has no sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from labkit.analysis import traced, traffic
from labkit.analysis.format import listing, number, percent
from labkit.analysis.recorded import value_of
from labkit.analysis.results import Results
from labkit.analysis.speed import name_of
from labkit.analysis.table import Table, Text
from labkit.observed import Metrics, Telemetry
from labkit.records import Record
from labkit.registry import METRICS
from labkit.sensors import GPU, HOST, RAPL
from labkit.statistics import Interval, log_interval, ratio_interval
from labkit.trial import Trial

SUMMED = frozenset({"power_w", "power_smi_w", "memory_bytes"})
THROTTLED = "throttled"  # how the reason of a flagged block begins where the driver named one
SETTLED_S = 5.0  # of load: shorter timed parts may end before power and temperature are steady
OF_HOST = frozenset({"cpu_utilisation", "cpu_clock_hz", "cpu_temperature_c", "cpu_core_utilisation", "cpu_steal"})


@dataclass(frozen=True)
class Spread:
    """A metric over the passes of a trial: mean of the passes' means, the lowest and the highest reading of all."""

    mean: float
    low: float
    high: float
    passes: int


def spread(results: Results, trial: Trial, metric: str, window: str = "timed") -> Spread | None:
    """Mean, low and high in a window (`timed`, `idle_before`, `polled` …); None where nothing was read."""
    found = [one for record in results.ok(trial) if (one := _of_record(record, metric, window))]
    if not found:
        return None
    return Spread(fmean(m for m, _, _ in found), min(a for _, a, _ in found), max(b for _, _, b in found), len(found))


def readings(results: Results, trials: Iterable[Trial], metric: str) -> str:
    """`1 to 8 readings a pass`: how often a metric was read in the timed parts of these trials; "" where never."""
    found = [
        statistics[metric].n
        for trial in trials
        for record in results.ok(trial)
        for statistics in _sources(record.telemetry, metric, "timed")
        if metric in statistics
    ]
    if not found:
        return ""
    least, most = min(found), max(found)
    return f"{least if least == most else f'{least} to {most}'} reading{'' if most == 1 else 's'} a pass"


def _of_record(record: Record, metric: str, window: str) -> tuple[float, float, float] | None:
    """(mean, low, high) of a metric over the record's devices; None too where one of them did not tell it."""
    of_sources = _sources(record.telemetry, metric, window)
    statistics = [metrics[metric] for metrics in of_sources if metric in metrics]
    part = _over_nodes(record) and metric in SUMMED
    if not statistics or part or (metric not in OF_HOST and len(statistics) < _devices(record.telemetry)):
        return None
    join = sum if metric in SUMMED else fmean
    low = join([one.low for one in statistics]) if metric in SUMMED else min(one.low for one in statistics)
    high = join([one.high for one in statistics]) if metric in SUMMED else max(one.high for one in statistics)
    return float(join([one.mean for one in statistics])), float(low), float(high)


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
    return [found for source, found in by_source.items() if source.startswith(HOST if metric in OF_HOST else GPU)]


def _devices(telemetry: Telemetry | None) -> int:
    """How many devices were sampled, those of which nothing could be read among them."""
    if telemetry is None:
        return 0
    told = {source for window in telemetry.windows.values() for source in window.sources} | set(telemetry.missing)
    return len({source for source in told if source.startswith(GPU)})


def mean_interval(results: Results, trial: Trial, metric: str) -> Interval | None:
    """The mean of a metric in the timed part (or energy per image, or efficiency) with its interval over passes."""
    values = [value for record in results.ok(trial) if (value := of_pass(results, record, metric)) is not None]
    return log_interval(values) if values and min(values) > 0 else None


def mean_ratio(results: Results, over: Trial, under: Trial, metric: str) -> Interval | None:
    """A metric of one trial over another's, formed within each pass first; None without a pass that holds both.

    None too where one of them is not above zero, as what lies above an idle board may be that others were busy on.
    """
    sides = [
        {r.pass_number: value for r in results.ok(trial) if (value := of_pass(results, r, metric)) is not None}
        for trial in (over, under)
    ]
    shared = sides[0].keys() & sides[1].keys()
    return ratio_interval(*sides) if all(side[number_] > 0 for side in sides for number_ in shared) else None


def of_pass(results: Results, record: Record, metric: str) -> float | None:
    """A metric of telemetry in one pass, in SI units; None where it was not read."""
    on_gpu = record.trial["device"] == "cuda"
    if metric == "energy_per_image_j":
        return _energy_per_image(record, above_w=0.0, on_gpu=on_gpu)
    if metric == "net_energy_per_image_j":
        idle_w = idle_power(results, record.pass_number, record.trial["device"])
        return None if idle_w is None else _energy_per_image(record, above_w=idle_w, on_gpu=on_gpu)
    if metric == "images_per_s_per_w":
        rate, power = value_of(record, "images_per_s"), of_pass(results, record, "power_w")
        return rate / power if rate is not None and power else None
    if metric == "power_w" and not on_gpu:
        return None if record.telemetry is None or _over_nodes(record) else _rapl_power(record.telemetry)
    if metric in traffic.FIGURES:
        return traffic.value(record, metric)
    if metric == "cpu_cores_used":
        return value_of(record, metric)
    found = _of_record(record, metric, "timed")
    return None if found is None else found[0]


def idle_power(results: Results, pass_number: int, device: str | None = None) -> float | None:
    """Watts of the idle trial of the same pass: a process holds the device and gives it nothing to do.

    `device` is `cuda` or `cpu`, without it what the profile is of.
    """
    for trial in results.trials(workload="idle", device=device or results.profile.device.kind):
        for record in results.ok(trial):
            if record.pass_number == pass_number:
                return of_pass(results, record, "power_w")
    return None


def _energy_per_image(record: Record, *, above_w: float, on_gpu: bool) -> float | None:
    """Joules an image over all long windows of a pass; None when one of them has no energy."""
    telemetry = record.telemetry
    if telemetry is None or not telemetry.energy or _over_nodes(record):
        return None
    joules, images = 0.0, 0
    for window in telemetry.energy:
        meters = _meters(window.energy_j, on_gpu=on_gpu)
        if not meters or window.images is None or any(value is None for value in meters.values()):
            return None
        joules += sum(value for value in meters.values() if value is not None) - above_w * window.length_s
        images += window.images
    return joules / images if images else None


def _meters(energy_j: dict[str, float | None], *, on_gpu: bool) -> dict[str, float | None]:
    """The meters of what a trial ran on: its GPUs, or the processor packages (without their memory)."""
    return {name: joules for name, joules in energy_j.items() if _is_meter(name, on_gpu=on_gpu)}


def _is_meter(source: str, *, on_gpu: bool) -> bool:
    return source.startswith(GPU) if on_gpu else _is_package(source)


def _is_package(source: str) -> bool:
    """A processor package as a whole: its parts (`package-0/dram`) are within it, and it is within `psys`."""
    return source.startswith(f"{RAPL}package") and "/" not in source


def _rapl_power(telemetry: Telemetry) -> float | None:
    seconds = sum(window.length_s for window in telemetry.energy)
    joules = [value for window in telemetry.energy for value in _meters(window.energy_j, on_gpu=False).values()]
    return sum(v for v in joules if v is not None) / seconds if joules and None not in joules and seconds else None


def energy_methods(results: Results) -> list[str]:
    """How the energy of what each trial ran on was found, as the records name it."""
    methods = {
        method
        for record in results.records
        if record.telemetry
        for source, method in record.telemetry.energy_method.items()
        if _is_meter(source, on_gpu=record.trial["device"] == "cuda")
    }
    return sorted(methods)


def missing(results: Results) -> dict[tuple[str, str], str]:
    """What this machine cannot tell, by (source, metric), with the reason."""
    found: dict[tuple[str, str], str] = {}
    for record in results.records:
        if record.telemetry:
            for source, reasons in record.telemetry.missing.items():
                for metric, reason in reasons.items():
                    found.setdefault((source, metric), reason)
    return found


def why_not(results: Results, metric: str, device: str | None = None, *, trial: Trial | None = None) -> str:
    """Why a metric is not shown, in a few words; of trials on `device` (`cuda`, `cpu`), else on the profile's.

    What depends on the trial is said of `trial`, or else of all.
    """
    records = results.ok(trial) if trial else [record for record in results.records if record.status == "ok"]
    if records and metric in traffic.FIGURES:
        return listing(sorted({reason for record in records if (reason := traffic.why_not(record, metric))}))
    if records and metric in traced.METRICS:
        return listing(sorted({traced.why_no_trace(record, metric) for record in records}))
    told = [record.telemetry for record in results.records if record.telemetry]
    lost = {one.reason or "unknown" for one in told if one.status == "lost"}
    if lost and all(one.status == "lost" for one in told):
        return listing(sorted(lost))
    on_gpu = (device or results.profile.device.kind) == "cuda"
    meter = HOST if metric in OF_HOST else GPU if on_gpu else RAPL
    names = {metric, "*"} | ({"power_w"} if metric == "energy_j" else set())
    reasons = {why for (source, name), why in missing(results).items() if name in names and source.startswith(meter)}
    if reasons or lost:
        return listing(sorted(reasons or lost))
    if results and all(record.telemetry is None for record in results.records):
        return "these records hold no telemetry"
    if not on_gpu and metric not in OF_HOST:
        return "a CPU has no such sensor"
    return "nothing was read" if results else "nothing was measured"


def _flagged(results: Results, trials: Iterable[Trial]) -> list[tuple[Trial, str, int, int]]:
    """(trial, why, flagged blocks, all blocks) over the passes that telemetry saw, for each reason that occurred."""
    found = []
    for trial in trials:
        counts: dict[str, int] = {}
        total = 0
        for record in results.ok(trial):
            if record.blocks is None or record.telemetry is None or record.telemetry.status == "lost":
                continue
            total += len(record.blocks.host_s)
            blocks: dict[str, set[int]] = {}
            for flag in record.telemetry.flagged:  # a block that two devices flag is one block
                blocks.setdefault(flag.why, set()).update(flag.blocks)
            for why, those in blocks.items():
                counts[why] = counts.get(why, 0) + len(those)
        found += [(trial, why, number, total) for why, number in counts.items()]
    return found


def sampler_sentence(results: Results) -> str:
    """Whether telemetry was there, what it cost, and where it has gaps."""
    watched = [record.telemetry for record in results.records if record.telemetry]
    tried = [record for record in results.records if record.status == "ok"]
    if not watched:
        return "No telemetry stands beside these records." if results else ""
    lost = [one for one in watched if one.status == "lost"]
    shares = [one.sampler_cpu_share for one in watched if one.sampler_cpu_share is not None]
    said = f"Telemetry stands beside {len(watched) - len(lost)} of {len(tried)} results"
    if shares:
        said += f"; its process took {percent(max(shares))} of one core at most"
    said += "."
    if lost:
        times = "once" if len(lost) == 1 else f"{len(lost)} times"
        said += f" It was lost {times}: {listing(sorted({one.reason or 'unknown' for one in lost}))}."
    gaps = {(gap.source, gap.reason) for one in watched for gap in one.gaps}
    if gaps:
        said += (
            " Gaps, in which nothing is known: " + "; ".join(f"{source}: {why}" for source, why in sorted(gaps)) + "."
        )
    return said


def label(metric: str) -> str:
    """The metric's name for people."""
    return METRICS[metric].label if metric in METRICS else metric.replace("_", " ")


def flags(results: Results, trials: list[Trial]) -> Table | Text:
    """Blocks that ran throttled or below clock, counted."""
    if not results:
        return Text("Nothing was measured, so nothing was throttled.")
    flagged = _flagged(results, trials)
    rows = [
        {"trial": name_of(trial, trials), "why": why, "blocks": some, "of": total, "share": percent(some / total, 3)}
        for trial, why, some, total in flagged
    ]
    if not rows:
        if all(mean_interval(results, trial, "sm_clock_hz") is None for trial in trials):
            return Text(f"Whether a device throttled can't be said here: {why_not(results, 'throttle')}.")
        lost = sum(r.telemetry is None or r.telemetry.status == "lost" for trial in trials for r in results.ok(trial))
        seen = f" of those that telemetry saw ({lost} results have none)" if lost else ""
        untold = [
            why for (source, metric), why in missing(results).items() if (source[:3], metric) == (GPU, "throttle")
        ]
        if untold:
            return Text(f"No timed block{seen} ran below clock; whether one was throttled can't be said: {untold[0]}.")
        return Text(f"No timed block{seen} ran throttled or below clock.")
    return Table(
        pd.DataFrame(rows),
        "Timed blocks during which the driver named a reason for a lower clock, or the SM clock fell under 95 % of the "
        f"highest of the trial. They are kept and counted, not dropped.{_short(results, flagged)}",
    )


def _short(results: Results, flagged: list[tuple[Trial, str, int, int]]) -> str:
    """That trials which the board's limits slowed were timed for less time than such limits take to settle."""
    slowed = [trial for trial, why, _, _ in flagged if why.startswith(THROTTLED)]
    timed_s = [sum(record.blocks.host_s) for trial in slowed for record in results.ok(trial) if record.blocks]
    if not timed_s or min(timed_s) >= SETTLED_S:
        return ""
    between = " to ".join(dict.fromkeys(f"{number(one, 2)} s" for one in (min(timed_s), max(timed_s))))
    return (
        f" What was throttled was timed for {between} a pass: power and temperature go on moving for seconds, so "
        "under a load that lasts it may be slower yet, and so may others that had not reached a limit."
    )


def power_kind(results: Results) -> str:
    """Whose power it is, and who says so."""
    if results.profile.device.kind == "cpu":
        return "Power of the processor packages by RAPL"
    return (
        f"Board power{' of all boards together' if results.profile.device.count > 1 else ''} as the driver reports it"
    )
