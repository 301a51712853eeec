"""What a framework takes beside the time of its steps: seconds until the first of them, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.figure import Figure
from labkit.analysis.format import listing, number
from labkit.analysis.observations import mean_interval
from labkit.analysis.studies.frameworks.compared import Setting, conditions, how
from labkit.analysis.studies.frameworks.figures import SHAPES, Mark, by_framework
from labkit.analysis.table import Text
from labkit.registry import find_metric
from labkit.results.from_result import compiler_state, preparing_s
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, log_interval
from labkit.trial import Trial

FIRST, LATER = "first pass", "later passes"
OWN, PLANNED, DEVICE, RESIDENT = "own counter", "XLA's plan", "device", "resident set"
FEW = 2
FILLS = {LATER: "none", DEVICE: "none", PLANNED: "left"}


def first_steps(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Seconds from no network to the end of the first step, in the first pass and in later ones."""
    known = [trial for trial in trials if results.values(trial, "time_to_first_step_s")]
    if not known:
        return Text("No record tells when its first step had ended, so there is no picture of it.")
    found = []
    for trial in known:
        seconds = results.values(trial, "time_to_first_step_s")
        first = min(seconds)
        later = [value for number_, value in seconds.items() if number_ != first]
        parts = {FIRST: log_interval([seconds[first]]), **({LATER: _of_later(later)} if later else {})}
        found += [_row(trial, which, interval) for which, interval in parts.items()]
    data = pd.DataFrame(found)
    ends = [data["value"].astype(float).min(), data["value"].astype(float).max()]
    counts = set(data.loc[data["which"] == LATER, "n"])
    bars = "95 % interval" if counts != {FEW} else "both of two later passes"
    bars += "; of two later passes both" if FEW in counts and counts != {FEW} else ""
    return by_framework(
        data,
        _marks(data),
        name="frameworks-first-step",
        label="seconds to the end of the first step (log scale)",
        caption="Time to the first step: building the network, tracing and compiling its step, and the step itself, "
        "after the framework was imported. Later passes are fresh processes, which may find on the disk what the "
        f"first has compiled.{_caches(results, known)}{_compiling(results, known)} The first trial of a process brings "
        "up its framework's part of the device too; which one that is, the pass's order decides. "
        f"{conditions(results, known)}. Bars: {bars}.",
        alt="Dot plots on log axes, a panel a network, a row a framework and engine: seconds until the first step had "
        f"ended, from {number(ends[0])} to {number(ends[1])}, in the first pass and in later ones.",
        again=results.again,
    )


def _of_later(seconds: list[float]) -> Interval:
    """Of two passes both, since an interval of two says more of Student than of them; of more the interval."""
    found = log_interval(seconds)
    if len(seconds) != FEW:
        return found
    return Interval(found.point, min(found.point, *seconds), max(found.point, *seconds), FEW)  # rounding aside


def _caches(results: Results, trials: Sequence[Trial]) -> str:
    """Whose compilers found something on the disk in the first pass already, as far as the records tell."""
    found: dict[str | None, list[str]] = {}
    for trial in trials:
        first = min(results.ok(trial), key=lambda record: record.pass_number)
        if first.phases_s.get("compile"):
            state = compiler_state(first)
            names = found.setdefault("warm" if state in ("partly", "cached") else state, [])
            names += [] if how(trial) in names else [how(trial)]
    said = ""
    if warm := found.get("warm"):
        said += f" In their first pass {listing(warm)} found programs of an earlier run there already."
    if cold := found.get("cold"):
        whose = f"first pass of {listing(cold)}" if len(found) > 1 else "first"
        said += f" The {whose} began with nothing there."
    if unknown := found.get(None):
        said += f" Whether the first pass of {listing(unknown)} found any there the records do not say."
    return said


def _compiling(results: Results, trials: Sequence[Trial]) -> str:
    """How much of the longest wait was tracing and compiling."""
    parts = [
        (preparing_s(record), seconds, trial)
        for trial in trials
        for record in results.ok(trial)
        if (seconds := results.values(trial, "time_to_first_step_s").get(record.pass_number))
    ]
    compiling_s, seconds, trial = max(parts, key=lambda part: part[1])
    if not compiling_s:
        return ""
    what = f"{how(trial)} in {trial.precision.upper()}, {Setting.of(trial).name}"
    return f" The longest, {number(seconds)} s, is {what}: {number(compiling_s)} s of it trace and compile."


def memory(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Memory by the framework's own counter beside what the device says is in use; of a CPU, of the process."""
    found = []
    for trial in trials:
        if not results.ok(trial):
            continue
        parts: dict[str, Interval | None]
        if trial.device == "cpu":
            parts = {RESIDENT: results.interval(trial, "memory_bytes")}
        else:
            own, planned = results.interval(trial, "framework_peak_bytes"), results.fact(trial, "planned_memory_bytes")
            plan = log_interval([float(planned)]) if own is None and planned else None
            parts = {OWN: own, PLANNED: plan, DEVICE: mean_interval(results, trial, "memory_bytes")}
        scale = find_metric("memory_bytes").scale
        found += [_row(trial, which, interval.scaled(scale)) for which, interval in parts.items() if interval]
    if not found:
        return Text("No record tells how much memory it took.")
    data = pd.DataFrame(found)
    on_cpu = set(data["which"]) == {RESIDENT}
    said = (
        "Memory of the training's process (its resident set at the end), the framework's own libraries and the images "
        "among it: a CPU has no counter of its own"
        if on_cpu
        else f"Memory: the peak by the framework's own counter{_methods(results, trials)}, and what was in use on the "
        f"device by all, its libraries among it{_without(results, data, trials)}. A framework that keeps what it had "
        "once, in this trial or in one before it, shows more on the device than it needs"
    )
    ends = [data["value"].astype(float).min(), data["value"].astype(float).max()]
    known = [trial for trial in trials if results.ok(trial)]
    return by_framework(
        data,
        _marks(data),
        name="frameworks-memory",
        label="GiB (log scale)",
        caption=f"{said}. {conditions(results, known)}. Bars: 95 % interval.",
        alt="Dot plots on log axes, a panel a network, a row a framework and engine: memory from "
        f"{number(ends[0])} to {number(ends[1])} GiB.",
        again=results.again,
    )


def _methods(results: Results, trials: Sequence[Trial]) -> str:
    """` (PyTorch: peak of PyTorch's CUDA allocator after the first step; …)`: what each counter is the peak of."""
    by_method: dict[str, list[str]] = {}
    for trial in trials:
        if results.interval(trial, "framework_peak_bytes") and (method := results.fact(trial, "memory_method")):
            names = by_method.setdefault(str(method), [])
            names += [] if how(trial) in names else [how(trial)]
    said = [f"{listing(names)}: {method}" for method, names in by_method.items()]
    return f" ({'; '.join(said)})" if said else ""


def _without(results: Results, data: pd.DataFrame, trials: Sequence[Trial]) -> str:
    """Which of the two is not known, and why."""
    if DEVICE not in set(data["which"]):
        return f" (not known here: {why_not(results, 'memory_bytes')})"
    reasons: dict[str, list[str]] = {}
    for trial in trials:
        if results.ok(trial) and results.interval(trial, "framework_peak_bytes") is None:
            why = results.fact(trial, "memory_reason") or "it has none"
            names = reasons.setdefault(str(why), [])
            names += [] if how(trial) in names else [how(trial)]
    said = [f"{listing(names)}: {why}" for why, names in reasons.items()]
    plan = ", half filled: what XLA planned for the step" if PLANNED in set(data["which"]) else ""
    return f" (without its own counter, {'; '.join(said)}{plan})" if said else ""


def _row(trial: Trial, which: str, interval: Interval) -> dict[str, Any]:
    precision = trial.precision.upper()
    return {
        "setting": Setting.of(trial).name,
        "how": how(trial),
        "framework": trial.framework,
        "precision": precision,
        "which": which,
        "mark": f"{precision}, {which}",
        **engines.ends(interval),
        "failed": None,
    }


def _marks(data: pd.DataFrame) -> list[Mark]:
    """A shape a precision, filled or hollow."""
    there = set(data["mark"])
    return [
        Mark(name, "mark", name, shape, FILLS.get(which, "full"))
        for precision, shape in SHAPES.items()
        for which in dict.fromkeys(data["which"])
        if (name := f"{precision}, {which}") in there
    ]
