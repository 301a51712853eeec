"""What an engine costs before its first step, and how near its steps stay to the eager loop's: two tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from labkit.analysis.engines import conditions, plain_of
from labkit.analysis.format import number
from labkit.analysis.speed import name_of
from labkit.analysis.table import Table, Text
from labkit.recipes import engine_name
from labkit.records import Record
from labkit.results.from_result import compiler_state
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

WHAT = {"loss": "loss", "change": "change", "worst": "worst single"}


def cost_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Seconds that an engine takes once, and after how much training it has paid for itself against the plain loop."""
    rows = [
        row
        for trial in trials
        if engine_name(trial) not in ("plain", "eager")
        if (row := _cost(results, trial, trials))
    ]
    if not rows:
        return Text("No trial here compiled or captured anything, so nothing was paid once.")
    frame = pd.DataFrame(rows)
    optional = [name for name in ("compile cold (s)", "compile partly cached (s)") if frame[name].isna().all()]
    return Table(
        frame.drop(columns=optional),
        "What an engine costs once, before its first step. Cold: every graph was compiled; cached: Inductor's cache on "
        "the disk had them all, from an earlier pass or from another trial with the same graphs; partly: some. Paid "
        "after: the seconds that the plain loop of the same model and batch would have trained when what was saved a "
        f"step has made up for it. {conditions(results, list(trials))}.",
    )


def _cost(results: Results, trial: Trial, beside: Sequence[Trial]) -> dict[str, Any] | None:
    compiling, capturing = (results.values(trial, metric) for metric in ("compile_s", "capture_s"))
    passes = sorted({*compiling, *capturing})
    if not passes:
        return None
    by_state: dict[str, list[int]] = {"cold": [], "partly": [], "cached": []}
    for record in results.ok(trial):
        by_state[_state(record, first=min(results.passes()))].append(record.pass_number)
    once = {number_: compiling.get(number_, 0.0) + capturing.get(number_, 0.0) for number_ in passes}
    saved = _saved(results, trial)
    return {
        "trial": name_of(trial, beside),
        "compile cold (s)": _mean(compiling, by_state["cold"]),
        "compile partly cached (s)": _mean(compiling, by_state["partly"]),
        "compile cached (s)": _mean(compiling, by_state["cached"]),
        "capture (s)": _mean(capturing, passes),
        "paid after, cold (s)": _paid(_mean(once, by_state["cold"]), saved),
        "paid after, cached (s)": _paid(_mean(once, by_state["cached"]), saved),
    }


def _state(record: Record, *, first: int) -> str:
    """Whether a trial found its graphs in its compiler's cache; of records that don't say, a first pass did not."""
    return compiler_state(record) or ("cold" if record.pass_number == first else "cached")


def _mean(found: dict[int, float], passes: list[int]) -> float | None:
    known = [found[number_] for number_ in passes if number_ in found]
    return fmean(known) if known else None


def _saved(results: Results, trial: Trial) -> tuple[float, float] | None:
    """(seconds of a plain step, seconds saved a step); None where the plain loop has no result."""
    plain = plain_of(results, trial)
    slow = results.interval(plain, "step_s") if plain else None
    fast = results.interval(trial, "step_s")
    return (slow.point, slow.point - fast.point) if slow and fast else None


def _paid(cost_s: float | None, saved: tuple[float, float] | None) -> str | None:
    if cost_s is None or saved is None:
        return None
    step_s, gain_s = saved
    if gain_s <= 0:
        return "never: it is not faster"
    return number(cost_s / gain_s * step_s)


def gate_table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """How far the first steps of each engine are from the eager loop's in the same precision, and what is tolerated."""
    rows = []
    for trial in trials:
        found = [record.facts["gate"] for record in results.ok(trial) if isinstance(record.facts.get("gate"), dict)]
        if not found:
            continue
        row: dict[str, Any] = {"trial": name_of(trial, trials), "steps": max(gate.get("steps", 0) for gate in found)}
        for what in ("loss", "change", "worst"):
            pairs = [(gate.get(f"{what}_difference"), gate.get(f"{what}_tolerance")) for gate in found]
            known = [(seen, allowed) for seen, allowed in pairs if seen is not None and allowed]
            seen, allowed = max(known, key=lambda pair: pair[0] / pair[1], default=(None, None))
            row[WHAT[what]] = None if seen is None else f"{seen:.2g} of {allowed:.2g}"
        rows.append({**row, "passes": len(found), "against FP32": sum("rounding_difference" in gate for gate in found)})
    if not rows:
        return Text("No trial here was compared with the eager loop: only other engines and optimisers are.")
    frame, of_fp32 = pd.DataFrame(rows), ""
    if frame["against FP32"].any():
        of_fp32 = (
            "In some passes rounding alone took steps beyond the tolerances. They were held against plain FP32, and "
            "tolerated is how far plain steps of the same precision are from it, and a little more. "
        )
    else:
        frame = frame.drop(columns="against FP32")
    return Table(
        frame,
        "The gate of an engine: its first steps beside those of the eager loop in the same precision and memory format "
        "(same weights, same images), as relative differences of the loss, of the change of all weights together, and "
        "of the single weight or running statistic that differs most; of the pass in which it is the most of what is "
        f"tolerated. {of_fp32}A trial beyond a tolerance has no result. It says that an engine computes what it "
        "should, not what a precision loses.",
    )
