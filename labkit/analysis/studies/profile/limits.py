"""What bounds a training step: launching, copies, memory or arithmetic, by a rule that is the same for all trials.

A device that waits for launches does not get faster by faster kernels, whatever the rest of the step is; so waiting is
asked first, then copies. Where neither takes much, the step is its kernels, and what bounds those is the unit that is
busy while they run. The threshold for that is Nsight Compute's (Kernel Profiling Guide, Speed of Light): below 60 % of
the peak of both arithmetic and memory, no unit bounds a kernel. What does instead (latency, most often) nothing here
counts, so it isn't named. Where nothing counts units, the roofline has to do: how much of the time the work would take
at the ceilings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, percent, with_interval
from labkit.analysis.observations import label, readings
from labkit.analysis.speed import title
from labkit.analysis.studies.profile import seen
from labkit.analysis.table import Table, Text
from labkit.results import roofline
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

STANDS_STILL = 0.2  # of a step in which the device waits for launches (or copies alone run): that bounds it
NEAR_PEAK = 0.6  # of the time in which kernels run: a unit so busy bounds them
SELDOM = 0.01  # of every step: a column of less is left out
LAUNCH, COPY, DRAM, COMPUTE, NO_UNIT, PYTHON, OPEN, UNDECIDED = (
    *("launch", "copy", "DRAM", "compute", "no unit", "Python"),
    "not told",
    "undecided",
)
UNITS = {
    "fp32_activity": "FP32 pipes are",
    "tensor_activity": "tensor cores are",
    "fp16_activity": "FP16 pipes are",
}
ACTIVITIES = {"sm_activity": "SM", "dram_activity": "DRAM", "fp32_activity": "FP32", "tensor_activity": "tensor"}

SMALL = {"queued": seen.QUEUED, "copies": seen.COPIES}
EXPLAINED = "explained by work"


class Limit(NamedTuple):
    """What bounds a trial, in a word; the share that says so, where one does, and a sentence with a place for it."""

    word: str
    because: str
    share: float | None = None


# What a device that stands still does instead, by the part of the step: each bounds it.
IDLE = {
    seen.WAITING: Limit(LAUNCH, "the device waits for launches for {} of the step"),
    seen.COPIES: Limit(COPY, "nothing but copies runs for {} of the step"),
    seen.BETWEEN: Limit(PYTHON, "{} of the step lies between operators"),
}


def limit_of(results: Results, trial: Trial) -> Limit | None:
    """What bounds a trial's step; None without a trace."""
    found = seen.shares(results, trial, seen.step_parts)
    parts = {name: share.point for name, share in found.items()}
    if not parts:
        return None
    idle = max((name for name in IDLE if name in found), key=lambda name: parts[name], default="")
    if idle and _straddles(found[idle], STANDS_STILL):
        said = f"{IDLE[idle].because}, and the interval of the passes reaches across {percent(STANDS_STILL)}"
        return Limit(UNDECIDED, said, parts[idle])
    if idle and parts[idle] >= STANDS_STILL:
        return IDLE[idle]._replace(share=parts[idle])
    busy = 1 - sum(parts.get(name, 0.0) for name in seen.REST)
    counted = _by_counters(results, trial, busy)
    return counted or _by_roofline(results, trial, busy)


def _straddles(share: Interval, threshold: float) -> bool:
    """Whether an interval of passes holds a threshold, so that it stands on neither side."""
    return share.low is not None and share.high is not None and share.low < threshold <= share.high


def _by_counters(results: Results, trial: Trial, busy: float) -> Limit | None:
    """By what the units did while kernels ran; None where the device does not tell."""
    memory = seen.metric(results, trial, "dram_activity")
    pipes = {name: found.point for name in UNITS if (found := seen.metric(results, trial, name))}
    if memory is None or not pipes or not busy:
        return None
    pipe = max(pipes, key=lambda name: pipes[name])
    dram, arithmetic = min(memory.point / busy, 1.0), min(pipes[pipe] / busy, 1.0)
    name, share = ("DRAM is", dram) if dram > arithmetic else (UNITS[pipe], arithmetic)
    said = f"{name} active for {{}} of the time in which kernels run"
    if share < NEAR_PEAK:
        return Limit(
            NO_UNIT, f"no unit is active for {percent(NEAR_PEAK)} of the kernels' time, the busiest for {{}}", share
        )
    return Limit(DRAM if dram > arithmetic else COMPUTE, said, share)


def of_roofline(results: Results, trial: Trial) -> float | None:
    """Images/s over what the measured ceilings allow, which are FP32's; None in another precision.

    It says nothing of what bounds a step: arithmetic is counted as of direct convolutions, and where Winograd and FFT
    kernels need less, images/s pass the roof while no unit is busy (VGG-16 on an H200: 117 %, FP32 pipes 41 %).
    """
    fraction = seen.metric(results, trial, "roofline_fraction") if trial.precision == "fp32" else None
    return fraction.point if fraction else None


class Work(NamedTuple):
    """How long the work of a step would take at the ceilings, as shares of the time in which anything ran."""

    arithmetic: float
    memory: float
    source: str  # of the ceilings

    @property
    def both(self) -> float:
        """One after the other, since convolving and updating are."""
        return self.arithmetic + self.memory


def work_of(results: Results, trial: Trial, busy: float) -> Work | None:
    """The work of a step beside the time in which anything ran, `busy` of the step; None where either isn't known.

    Of the bytes only those count that no cache saves, so memory can be what bounds a step without being told.
    """
    work, step = roofline.work_of(results, trial), seen.metric(results, trial, "step_s")
    ceilings = ceilings_of(results, trial)
    if work is None or step is None or not busy or not (ceilings.flop_per_s or ceilings.bytes_per_s):
        return None
    seconds = step.point * busy
    return Work(
        work.flop / ceilings.flop_per_s / seconds if ceilings.flop_per_s else 0.0,
        work.unavoidable_bytes / ceilings.bytes_per_s / seconds if ceilings.bytes_per_s else 0.0,
        ceilings.source,
    )


def _by_roofline(results: Results, trial: Trial, busy: float) -> Limit:
    """By how long the work would take at the ceilings."""
    work = work_of(results, trial, busy)
    if work is None:
        return Limit(OPEN, "neither counters nor work and ceilings are known")
    at = f"arithmetic and bytes that no cache saves would take {{}} of the time at {work.source} ceilings"
    if work.both < NEAR_PEAK:
        return Limit(OPEN, at, work.both)
    more = work.arithmetic >= work.memory
    return Limit(COMPUTE if more else DRAM, f"{at}, {'arithmetic' if more else 'bytes'} the more", work.both)


def ceilings_of(results: Results, trial: Trial) -> roofline.Ceilings:
    """Measured ceilings for FP32, which is what they were measured in; the vendor's for narrower arithmetic."""
    measured = roofline.measured(results, trial.device)
    if trial.precision == "fp32" and measured.flop_per_s:
        return measured
    return roofline.nominal_of(results.profile, trial)


def limits(results: Results, trials: Sequence[Trial]) -> dict[Trial, Limit]:
    """The trials that have one, with what bounds them."""
    found = {trial: limit_of(results, trial) for trial in trials}
    return {trial: limit for trial, limit in found.items() if limit}


def rule(*, on_cpu: bool = False) -> str:
    """The rule in words."""
    ceilings = (
        f"by compute or DRAM, whichever is more, where arithmetic and the bytes that no cache saves would together "
        f"take {percent(NEAR_PEAK)} or more of the time of the {'operators' if on_cpu else 'kernels'} at the ceilings; "
        "else not told"
    )
    if on_cpu:
        return (
            f"Bound by Python where {percent(STANDS_STILL)} of the step or more lie between operators (undecided where "
            f"the interval of the passes holds that share); else {ceilings}."
        )
    return (
        f"Bound by launch (or copy) where the device waits for launches (or does nothing but copy) for "
        f"{percent(STANDS_STILL)} of the step or more (undecided where the interval of the passes holds that share); "
        "else by the unit, DRAM or arithmetic, that is active for "
        f"{percent(NEAR_PEAK)} or more of the time in which kernels run, the busier of the two; else no unit is, "
        f"and what bounds it instead is not determined. Where units are not counted: {ceilings}."
    )


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """What bounds each trial, and what says so; a trial without a result is a row."""
    if not trials:
        return Text(f"There are no traced trainings of {results.profile.title} yet: nothing to show here.")
    on_cpu, found = all(trial.device == "cpu" for trial in trials), limits(results, trials)
    names = seen.engine_words(trials)
    rows = [_row(results, trial, names[trial], found.get(trial), on_cpu=on_cpu) for trial in trials]
    frame = pd.DataFrame(rows, dtype=object)
    seldom = ("waits", "queued", "copies", "kernels", *ACTIVITIES.values(), "of roofline", EXPLAINED, "no result")
    little = [] if on_cpu else [head for head, part in SMALL.items() if _most(results, trials, part) < SELDOM]
    absent = [metric for metric, head in ACTIVITIES.items() if frame[head].isna().all()]
    columns = _columns(little, readings(results, trials, "sm_activity"), on_cpu=on_cpu)
    return Table(
        engines.concise(frame.where(frame.notna(), None).drop(columns=little), seldom),
        f"{rule(on_cpu=on_cpu)} {columns}{_absent(results, absent, on_cpu=on_cpu)} "
        f"{seen.steps_words(results, trials)}, {seen.spread_words(results, trials, seen.step_parts)}."
        f"{seen.lacking_sentence(results, trials)} {engines.conditions(results, list(trials))}.",
    )


def by_network(results: Results, trials: Sequence[Trial]) -> list[Table | Text]:
    """The same of a GPU, whose units are many columns, as a table a network and size; of a CPU in one."""
    whole = table(results, trials)
    if isinstance(whole, Text) or all(trial.device == "cpu" for trial in trials):
        return [whole]
    parts = {str(name): part for name, part in whole.frame.groupby("", sort=False)}
    return [
        Table(part.drop(columns=""), f"{name}. {'As above.' if place else whole.caption}")
        for place, (name, part) in enumerate(parts.items())
    ]


def _row(results: Results, trial: Trial, engine: str, limit: Limit | None, *, on_cpu: bool) -> dict[str, object]:
    parts = {name: share.point for name, share in seen.shares(results, trial, seen.step_parts).items()}
    busy = 1 - sum(parts.get(name, 0.0) for name in seen.REST) if parts else None
    step, reached = results.interval(trial, "step_s"), of_roofline(results, trial)
    units = {head: seen.metric(results, trial, name) for name, head in ACTIVITIES.items()}
    work = work_of(results, trial, busy) if on_cpu and busy else None
    idle = {"between": seen.BETWEEN} if on_cpu else {"waits": seen.WAITING, **SMALL}
    last = {EXPLAINED: percent(work.both) if work else None}
    if not on_cpu:
        last = {"of roofline": of_roof(reached) if reached is not None else None}
    return {
        "": f"{title(trial)}, {trial.image_px} px",
        "batch": trial.batch,
        "engine": engine,
        "bound by": limit.word if limit else None,
        "step (ms)": with_interval(step, "step_s", unit=False) if step else None,
        **{head: seen.of_step(parts.get(part)) for head, part in idle.items()},
        "operators" if on_cpu else "kernels": seen.of_step(busy),
        **{head: percent(found.point) if found else None for head, found in units.items()},
        **last,
        "no result": engines.status_without_result(results, trial),
    }


def _most(results: Results, trials: Sequence[Trial], part: str) -> float:
    """The largest share that a part has of any step; none is 0."""
    found = [seen.shares(results, trial, seen.step_parts) for trial in trials]
    return max((one[part].point for one in found if part in one), default=0.0)


def _columns(little: Sequence[str], often: str, *, on_cpu: bool) -> str:
    if on_cpu:
        return (
            f"Between: of a traced step outside of all operators; operators: in them. {EXPLAINED.capitalize()}: how "
            "much of the operators' time arithmetic and the bytes that no cache saves would take, one after the other, "
            "at the ceilings."
        )
    said = {
        "waits": "waits, the device has nothing that was launched",
        "queued": "queued, it stands still though something was",
        "copies": "copies, while no kernel ran",
        "kernels": "kernels, while any ran",
    }
    less = f" Below {percent(SELDOM)} of every step, so not shown: {listing(list(little))}." if little else ""
    return (
        f"Of a timed step: {'; '.join(words for head, words in said.items() if head not in little)}.{less} SM, DRAM, "
        f"FP32 and tensor: how much of the timed part these units were active, by the device's counters"
        f"{f' ({often})' if often else ''}. Of roofline: images/s over what the measured "
        "FP32 ceilings allow direct convolutions, of whose arithmetic Winograd and FFT kernels need less."
    )


def of_roof(reached: float) -> str:
    """A share of the roofline: with a digit more where it lies about or above 100 %, which needs telling apart."""
    return percent(reached, 3 if reached >= 0.995 else 2)


def _absent(results: Results, absent: Sequence[str], *, on_cpu: bool) -> str:
    if on_cpu or not absent:
        return ""
    by_reason: dict[str, list[str]] = {}
    for metric in absent:
        by_reason.setdefault(why_not(results, metric), []).append(label(metric))
    said = "; ".join(f"{listing(names)}: {why}" for why, names in by_reason.items())
    return f" Not readable here: {said}."
