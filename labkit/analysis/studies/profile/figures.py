"""Where the time of a step goes, as a picture: a panel a network, a bar a batch, tuned engines beside.

The roofline (`roofs`) stands here too, under the name that the notebook calls it by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.figure import Figure
from labkit.analysis.format import listing, number, percent
from labkit.analysis.studies.profile import seen
from labkit.analysis.studies.profile.bars import Bars, Look
from labkit.analysis.studies.profile.roofs import picture as roofline
from labkit.analysis.table import Text
from labkit.recipes import engine_name
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

__all__ = ["LOOKS", "frame_of", "roofline", "steps"]

IDLE, SELDOM = "idle, other", 0.01  # copies alone and queued together, where no step has so much of either
LOOKS = {
    "convolution": Look(0),
    "matrix product": Look(1),
    "batch norm": Look(2),
    "pooling": Look(5),
    "element-wise": Look(4),
    "optimiser": Look(3),
    "between devices": Look(6),
    "loss, layout, loader": Look(shade=0.55),
    "unknown": Look(6, hatch="xx"),
    seen.COPIES: Look(shade=0.85),
    seen.QUEUED: Look(shade=0.25),
    IDLE: Look(shade=0.25),
    seen.WAITING: Look(hatch="////"),
    seen.BETWEEN: Look(hatch="////"),
}
assert set(LOOKS) == {*seen.GROUPS, *seen.REST, IDLE}
MERGED = f" Copies alone and queued are each below {percent(SELDOM)} of every step and drawn as one ({IDLE})."
Parts = dict[Trial, dict[str, Interval]]


def steps(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """The step of each trial as a stacked bar that adds up to all of it."""
    shares = {trial: found for trial in trials if (found := seen.shares(results, trial, seen.step_parts))}
    if not shares:
        return Text(f"There is no picture of where the time goes: {seen.why_none(results, trials)}.")
    on_cpu = all(trial.device == "cpu" for trial in shares)

    def over(trial: Trial) -> str:
        step = results.interval(trial, "step_s")
        return number(step.point * 1e3, 2) if step else ""

    heights = {trial: {part: one.point * 100 for part, one in found.items()} for trial, found in shares.items()}
    merged = _little(heights)
    bars = Bars(
        trials=trials,
        parts={trial: _merged(found) for trial, found in heights.items()} if merged else heights,
        looks=LOOKS,
        along="batch; over each bar the timed step in ms",
        label=f"share of a {'traced' if on_cpu else 'timed'} step (%)",
        over=over,
        highest=100.0,
    )
    return Figure(
        name="profile-steps",
        draw=bars.draw,
        again=results.again,
        caption=f"{_what(on_cpu=on_cpu)}{MERGED if merged else ''} "
        f"{seen.steps_words(results, list(shares)).capitalize()}, means of passes; "
        f"{seen.spread_words(results, list(shares), seen.step_parts)}.{seen.unknown_sentence(results, list(shares))}"
        f"{seen.lacking_sentence(results, trials)} "
        f"{engines.conditions(results, list(trials))}.",
        alt=f"Stacked bars, a panel a network and input size, a bar a batch, of the shares of a step spent in "
        f"{listing(bars.shown)}. {_extremes(shares)}",
        data=frame_of(shares),
        size_in=bars.size_in,
    )


def _little(heights: Mapping[Trial, Mapping[str, float]]) -> bool:
    """Whether copies alone and queued are both too little in every step to be told apart in a picture."""
    found = [one.get(part, 0.0) for one in heights.values() for part in (seen.COPIES, seen.QUEUED)]
    return 0 < max(found) < SELDOM * 100


def _merged(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts with copies alone and queued as one, which stands where they stood."""
    small = (seen.COPIES, seen.QUEUED)
    return {name: share for name, share in parts.items() if name not in small} | {
        IDLE: sum(parts.get(name, 0.0) for name in small)
    }


def frame_of(shares: Parts) -> pd.DataFrame:
    """One row a trial and part: its share in percent with the interval."""
    rows = [
        {
            "network": seen.setting(trial),
            "batch": trial.batch,
            "engine": engine_name(trial),
            "part": part,
            "share (%)": one.point * 100,
            "low": None if one.low is None else one.low * 100,
            "high": None if one.high is None else one.high * 100,
            "n": one.n,
        }
        for trial, found in shares.items()
        for part, one in found.items()
    ]
    return pd.DataFrame(rows)


def _what(*, on_cpu: bool) -> str:
    if on_cpu:
        return (
            "Of a step under the profiler: each class of PyTorch's operators by its own time, without the operators "
            "within it, and what lies between operators, which is Python and the framework."
        )
    return (
        "Of a timed step: kernels by what they do, copies and fills while no kernel ran, and the rest, in which the "
        "device waited for something that was not launched yet or stood still though work was (queued). Kernels take "
        "as long under the profiler as without it, so their time is the trace's and the step's is the clock's; how the "
        "rest divides is the trace's."
    )


def _extremes(shares: Parts) -> str:
    """Who waits most and who least, in words."""
    rest = {
        trial: sum(found[name].point for name in (seen.WAITING, seen.BETWEEN) if name in found)
        for trial, found in shares.items()
    }
    most, least = max(rest, key=lambda one: rest[one]), min(rest, key=lambda one: rest[one])
    return f"Waiting is from {percent(rest[least])} ({seen.name(least)}) to {percent(rest[most])} ({seen.name(most)})."
