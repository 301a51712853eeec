"""Every utilisation of each trial as a table, and what each of them means."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, number, percent, with_interval
from labkit.analysis.observations import readings
from labkit.analysis.studies import known_rates
from labkit.analysis.studies.gan.seen import of, series_of
from labkit.analysis.table import Table, Text
from labkit.recipes import CRITIC_STEPS
from labkit.registry import METRICS
from labkit.results import from_trace as traced
from labkit.results import roofline
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

ACTIVITIES = ("sm_activity", "fp32_activity", "tensor_activity")
LEAST = 0.001  # smaller shares are noise, and only said to be smaller


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Step time, images/s and every utilisation of each trial; a failure is a row."""
    if not trials:
        return Text(f"There are no trials of a WGAN on {results.profile.title} yet: nothing to show here.")
    shares = ("compute_utilisation", "launch_gap_share", "fp32_utilisation", *ACTIVITIES)
    columns = dict(zip(shares, ("computing", "waiting", "of FP32 peak", "SM", "FP32 pipe", "tensor"), strict=True))
    rows, on_cpu = [], results.profile.device.kind == "cpu"
    for trial in trials:
        row = {
            "training": series_of(trial, trials),
            "mini-batch": trial.batch,
            "step (ms)": _point(results.interval(trial, "step_s"), "step_s"),
            "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", 3, unit=False),
        }
        for metric, name in columns.items():
            found = of(results, trial, metric)
            row[name] = share_words(found.point) if found else None
        profiled = _as_profiled(results, trial)
        row["profiled"] = share_words(profiled) if profiled is not None else None
        memory = _memory_bytes(results, trial)
        row["memory (GiB)"] = number(memory * METRICS["memory_bytes"].scale) if memory is not None else None
        row["n"] = len(results.ok(trial))
        row["no result"] = engines.status_without_result(results, trial)
        rows.append(row)
    frame = pd.DataFrame(rows, dtype=object)
    memory_is = (
        "Memory: what the process holds at the end, mean of passes. "
        if on_cpu
        else "Memory: the most that was allocated at once, mean of passes, which may choose other algorithms. "
    )
    if "profiled" in frame:  # beside what it is another reading of
        frame.insert(list(frame).index("computing") + 1, "profiled", frame.pop("profiled"))
    return Table(
        engines.concise(frame, (*columns.values(), "profiled", "memory (GiB)", "no result")),
        f"A step is an iteration: {CRITIC_STEPS} steps of the critic, each on a fresh mini-batch of real images and as "
        f"many generated ones, then one of the generator. Images/s are real images, {CRITIC_STEPS} mini-batches a "
        f"step. {_timed(results, trials)}{meanings(results, trials, shares)} "
        f"{memory_is if frame['memory (GiB)'].notna().any() else ''}"
        f"{engines.conditions(results, list(trials))}. Intervals: 95 %.",
    )


def _timed(results: Results, trials: Sequence[Trial]) -> str:
    """How long a trial was timed, for how many iterations at least, and after how many it was traced."""
    blocks = [(record.blocks, traced.trace_of(record)) for trial in trials for record in results.ok(trial)]
    seconds = [one.timed_s for one, _ in blocks if one]
    if not seconds:
        return ""
    steps = min(one.steps_per_block * len(one.host_s) for one, _ in blocks if one)
    before = [trace.steps_before for _, trace in blocks if trace]
    said = f"Timed for {number(min(seconds), 2)} to {number(max(seconds), 2)} s a pass, {steps:,} iterations at least"
    places = " to ".join(dict.fromkeys(f"{count:,}" for count in (min(before), max(before)))) if before else ""
    return f"{said}; traced after {places}. " if places else f"{said}. "


def why_apart(results: Results, trials: Sequence[Trial]) -> Text:
    """Why the measures of one trial differ: each counts something else. Empty without the device's own counters."""
    known = [trial for trial in trials if of(results, trial, "sm_activity")]
    if not known:
        return Text("")
    said = (
        "Computing counts the time in which any kernel runs, however small; SM activity how many multiprocessors had "
        "work. The FP32 pipe does more than FP32 utilisation counts, which are convolutions: batch norm, activations "
        "and updates too, and what a convolution's algorithm does before and after; and less where the algorithm needs "
        "less arithmetic."
    )
    return Text("\n\n".join(part for part in (said, known_rates.sentence(results)) if part))


def _as_profiled(results: Results, trial: Trial) -> float | None:
    """The share as the paper took it; None on a CPU, where it is the other one."""
    found = of(results, trial, "profiled_utilisation") if trial.device == "cuda" else None
    return found.point if found else None


def launches_a_step(results: Results, trial: Trial) -> float | None:
    """Calls that launch kernels or graphs, in a traced iteration; None without a trace, or on a CPU."""
    traces = [trace for record in results.ok(trial) if (trace := traced.trace_of(record)) and "launch" in trace.calls]
    if not traces:
        return None
    return sum(trace.calls["launch"].count for trace in traces) / sum(trace.steps for trace in traces)


def _memory_bytes(results: Results, trial: Trial) -> float | None:
    """Mean of the passes that say it."""
    said = [value for record in results.ok(trial) if (value := record.facts.get("memory_bytes")) is not None]
    return fmean(said) if said else None


def _point(found: Interval | None, metric: str) -> str | None:
    return number(found.point * METRICS[metric].scale) if found else None


def share_words(share: float) -> str:
    """A share of a table; one of less than a thousandth is noise."""
    return f"< {percent(LEAST)}" if 0 < share < LEAST else percent(share)


def meanings(results: Results, trials: Sequence[Trial], metrics: Sequence[str]) -> str:
    """What metrics of a table or picture mean, and why some have no values."""
    on_cpu, said = results.profile.device.kind == "cpu", []
    if "compute_utilisation" in metrics:
        said.append(
            "Computing: share of the time in which an operator of PyTorch ran, within the traced iterations."
            if on_cpu
            else "Computing: time of traced iterations in which a kernel ran, over the time of as many timed ones."
        )
    if "launch_gap_share" in metrics and not on_cpu:
        said.append(
            "Profiled: over the time of the traced ones, as the paper has it, which the profiler prolongs where the "
            "host holds the device up. Waiting: for "
            "the host to launch a kernel; the rest are gaps between kernels that were launched, copies and fills."
        )
    if "fp32_utilisation" in metrics:
        what = "Of FP32 peak (FP32 utilisation): FLOP over peak and elapsed time, of FP32 trials"
        said.append(f"{what}; {peak_words(results)}.")
    sensed = [name for name in ACTIVITIES if name in metrics]
    missing = [name for name in sensed if all(of(results, trial, name) is None for trial in trials)]
    if sensed and on_cpu:
        said.append("SM activity and the activity of pipes are of GPUs (GPM): a CPU has no such counters here.")
    elif missing:
        labels = listing([METRICS[name].label for name in missing])
        said.append(f"Not readable here: {labels} ({why_not(results, missing[0])}).")
    if sensed and len(missing) < len(sensed) and not on_cpu:
        there = next(name for name in sensed if name not in missing)
        often = readings(results, trials, there)
        said.append(f"Activities are the device's own counters (GPM) over the timed part, {often}.")
    return " ".join(said)


def peak_words(results: Results) -> str:
    """Which FP32 peak the formula takes."""
    kind = results.profile.device.kind
    peak, source = roofline.fp32_peak(results, Trial(device=kind))
    if peak is None:
        return "no FP32 peak is known"
    own = "the vendor's" if source == "nominal" else "the largest that a matrix product reached here:"
    return f"the peak is {own} {with_interval(Interval(peak, peak, peak, 1), 'flop_per_s').split(' [')[0]}"
