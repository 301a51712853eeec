"""What telemetry says of a trial, over its passes: means with intervals, extremes, energy, flags, and what is missing.

A metric of several devices is their sum (power, energy, memory) or their mean (shares, clocks, temperature). Of several
nodes only the first is watched: such a trial has no sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from labkit.analysis.format import listing, number, percent
from labkit.analysis.speed import name_of
from labkit.analysis.table import Table, Text
from labkit.registry import METRICS
from labkit.results.from_telemetry import (
    _sources,
    missing,
    of_pass,
    of_record,
    why_not,
)
from labkit.results.study_records import StudyRecords as Results
from labkit.sensors import GPU
from labkit.statistics import Interval, log_interval, ratio_interval
from labkit.trial import Trial

THROTTLED = "throttled"  # how the reason of a flagged block begins where the driver named one
SETTLED_S = 5.0  # of load: shorter timed parts may end before power and temperature are steady


@dataclass(frozen=True)
class Spread:
    """A metric over the passes of a trial: mean of the passes' means, the lowest and the highest reading of all."""

    mean: float
    low: float
    high: float
    passes: int


def spread(results: Results, trial: Trial, metric: str, window: str = "timed") -> Spread | None:
    """Mean, low and high in a window (`timed`, `idle_before`, `polled` …); None where nothing was read."""
    found = [one for record in results.ok(trial) if (one := of_record(record, metric, window))]
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
