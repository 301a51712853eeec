"""Does a traced sample stand for the run: few steps beside many, what a profiler costs; and the longest kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import counted, number, percent
from labkit.analysis.studies.profile import seen
from labkit.analysis.table import Table, Text
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, difference_interval
from labkit.traced import Piece, Traced
from labkit.trial import Trial

STANDS_FOR = 0.02  # so far a share of a few steps may lie from that of many
LONGEST = 12  # kernels of a table


class Sample(NamedTuple):
    """Two trials that differ in how many of their steps were traced."""

    few: Trial
    many: Trial


def samples(results: Results) -> list[Sample]:
    """Pairs of trials alike in all but how many steps were traced: the fewest and the most."""
    alike: dict[Trial, list[Trial]] = {}
    for trial in engines.timed(results):
        if trial.traced_iterations and seen.traces(results, trial):
            alike.setdefault(seen.without_questions(trial), []).append(trial)
    found = [sorted(trials, key=lambda trial: trial.traced_iterations) for trials in alike.values()]
    return [Sample(one[0], one[-1]) for one in found if one[0].traced_iterations < one[-1].traced_iterations]


def differences(results: Results, sample: Sample) -> dict[str, Interval]:
    """Each class's share in few steps minus that in many, within passes."""
    by_pass = [
        {record.pass_number: seen.groups(trace) for record, trace in seen.traces(results, trial)} for trial in sample
    ]
    names = list(dict.fromkeys(name for one in by_pass for shares in one.values() for name in shares))
    found = {}
    for name in names:
        few, many = ({number_: one.get(name, 0.0) for number_, one in passes.items()} for passes in by_pass)
        between = difference_interval(few, many)
        if between:
            found[name] = between
    return found


def sentence(results: Results) -> Text:
    """How far the shares of a few traced steps lie from those of many, against what is tolerated."""
    said = []
    for sample in samples(results):
        found = differences(results, sample)
        if not found:
            continue
        worst = max(found, key=lambda name: _far(found[name]))
        few, many = (_steps(results, trial) for trial in sample)
        stands = _stands(list(found.values()))
        said.append(
            f"{seen.name(sample.few)}: a sample of {few} {stands} {many}. Of the time of all "
            f"{seen.ran(sample)}s the share of {worst} differs most, by {_points(found[worst])}; "
            f"{100 * STANDS_FOR:g} points are tolerated.{_before(sample)}"
        )
    if not said:
        return Text("No two trials with traces differ in nothing but how many steps were traced.")
    return Text("\n\n".join(said))


def short(results: Results) -> str:
    """For the answer, how far a sample of steps can be trusted; empty where no trial was traced twice."""
    said = []
    for sample in samples(results):
        if found := differences(results, sample):
            few, many = (_steps(results, trial) for trial in sample)
            said.append(
                f"{seen.name(sample.few)}: a sample of {few} {_stands(list(found.values()))} {many} in how the time of "
                f"{seen.ran(sample)}s divides."
            )
    return f"Can a few steps be trusted? {' '.join(said)}" if said else ""


def _stands(found: Sequence[Interval]) -> str:
    """By the intervals: all of them within what is tolerated, one wholly beyond, or neither."""
    if all(_far(one) <= STANDS_FOR for one in found):
        return "stands for"
    beyond = [one for one in found if _near(one) > STANDS_FOR]
    return "does not stand for" if beyond else "can't be told to stand for"


def _near(one: Interval) -> float:
    """The smallest difference that an interval holds; at most 0 where it holds none at all."""
    low, high = (one.point if end is None else end for end in (one.low, one.high))
    return max(low, -high)


def _far(one: Interval) -> float:
    """The largest difference that an interval holds."""
    return max(abs(one.point), abs(one.low or 0.0), abs(one.high or 0.0))


def _points(one: Interval) -> str:
    """`0.4 points [-0.1, 0.9]`."""
    if one.low is None or one.high is None:
        return f"{seen.points(one.point)} (one pass, no interval)"
    if _far(one) < seen.LEAST:
        return seen.points(0.0)
    return f"{100 * one.point:.2g} points [{100 * one.low:.2g}, {100 * one.high:.2g}]"


def _steps(results: Results, trial: Trial) -> str:
    return seen.steps_words(results, [trial]).replace(" a pass", "")


def _before(sample: Sample) -> str:
    before = min(trial.steps_before for trial in sample)
    return f" Before either came {before:,} steps of the trial at least." if before else ""


def picture(results: Results) -> Figure | Text:
    """Each class's share in few steps and in many, and in the pieces that the many were taken in."""
    rows = []
    for sample in samples(results):
        for which, trial in zip(("few", "many"), sample, strict=True):
            shares = seen.shares(results, trial, lambda _, trace: seen.groups(trace))
            pieces = [_piece_groups(piece) for _, trace in seen.traces(results, trial) for piece in trace.pieces]
            for name, share in shares.items():
                of_pieces = [one.get(name, 0.0) * 100 for one in pieces]
                rows.append(
                    {
                        "trial": seen.name(trial),
                        "traced steps": _steps(results, trial),
                        "class": name,
                        "share (%)": share.point * 100,
                        "lowest piece": min(of_pieces, default=None),
                        "highest piece": max(of_pieces, default=None),
                        "n": share.n,
                        "which": which,
                    }
                )
    if not rows:
        return Text("There is no picture of how well a sample stands for a run: no trial was traced twice.")
    data = pd.DataFrame(rows)
    places = list(dict.fromkeys(zip(data["trial"], data["class"], strict=True)))
    several, what = data["trial"].nunique() > 1, seen.ran([one.few for one in samples(results)])
    names = [f"{of_class} ({trial})" if several else of_class for trial, of_class in places]

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.add_subplot()
        for index, (which, shift) in enumerate((("few", -0.16), ("many", 0.16))):
            for _, row in data[data["which"] == which].iterrows():
                at = places.index((row["trial"], row["class"])) + shift
                colour, low, high = theme.palette[index], row["lowest piece"], row["highest piece"]
                if pd.notna(low):
                    axes.plot([low, high], [at, at], color=colour, lw=2.2, alpha=0.5)
                label = row["traced steps"] if not several else f"{which} steps"
                axes.plot(row["share (%)"], at, MARKERS[index], color=colour, ms=6.5, label=label)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, None)
        axes.set_xlabel(f"share of the {what}s' time (%); line: from the lowest to the highest piece")
        tidy(axes, theme, grid="x")
        legend_above(figure, [axes])

    trials = list(dict.fromkeys(trial for sample in samples(results) for trial in sample))
    apart = [abs(one.point) for sample in samples(results) for one in differences(results, sample).values()]
    most = f": no class differs by more than {seen.points(max(apart)).removeprefix('less than ')}" if apart else ""
    return Figure(
        name="profile-sample",
        draw=draw,
        again=results.again,
        caption=f"Shares of classes of {what}s in a few traced steps and in many of the same training; lines span the "
        "pieces that a trace is taken in. Means of passes. "
        f"{engines.conditions(results, trials)}.",
        alt=f"Dot plot, a row a class of {what}s, of its share in a few traced steps and in many{most}.",
        data=data.drop(columns="which"),
        size_in=(8.0, 1.3 + 0.36 * len(names)),
    )


def _piece_groups(piece: Piece) -> seen.Shares:
    whole = sum(piece.kernel_s.values())
    if not whole:
        return {}
    return {name: sum(piece.kernel_s.get(kind, 0.0) for kind in kinds) / whole for name, kinds in seen.GROUPS.items()}


def slowdown(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """What the profiler itself costs: a traced step over a timed one."""
    rows = []
    for trial in seen.ends([one for one in trials if seen.traces(results, one)]):
        slower, traced = (seen.metric(results, trial, name) for name in ("trace_slowdown", "traced_step_s"))
        step = results.interval(trial, "step_s")
        if slower and traced and step:
            rows.append(
                {
                    "": seen.name(trial),
                    "timed step (ms)": step.point * 1e3,
                    "traced step (ms)": traced.point * 1e3,
                    "traced / timed": f"{number(slower.point)}x",
                    "of it edges (ms)": seen.mean_of(results, trial, _edges_ms),
                    "traced steps": seen.steps_words(results, [trial]).split(" traced")[0],
                    "pieces": counted(seen.mean_of(results, trial, lambda trace: float(len(trace.pieces)))),
                }
            )
    if not rows:
        return Text(f"What a profiler costs can't be said here: {seen.why_none(results, trials)}.")
    frame = engines.concise(pd.DataFrame(rows, dtype=object), ["of it edges (ms)"])
    edges = (
        "; edges: of a step the time in which a piece has begun and nothing runs yet, or all has run, which weighs "
        "most where the host has little to note down"
        if "of it edges (ms)" in frame
        else ""
    )
    return Table(
        frame,
        "A step under the profiler beside a timed one: small kernels (or operators) suffer most, since each costs the "
        "host the same to note down. Pieces: runs of the profiler that "
        f"the steps were traced in{edges}. No number of speed on any page is of a traced step."
        f"{notes(results, trials)} {results.describe()}.",
    )


def _edges_ms(trace: Traced) -> float | None:
    return None if trace.edge_gap_s is None else 1e3 * trace.edge_gap_s / trace.steps


def notes(results: Results, trials: Sequence[Trial]) -> str:
    """What the traces say of themselves, that something is incomplete and why, each once."""
    found: dict[str, set[Trial]] = {}
    for trial in trials:
        for _, trace in seen.traces(results, trial):
            for note in trace.notes:
                found.setdefault(note, set()).add(trial)
    said = [f"{note} ({len(of)} trial{'s' if len(of) > 1 else ''})" for note, of in found.items()]
    return f" The traces' own notes: {'; '.join(said)}." if said else ""


def longest(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """The kernels that take most time of the trial that has the largest batch of the first network."""
    known = [trial for trial in trials if seen.traces(results, trial)]
    if not known:
        return Text(f"No kernel can be named: {seen.why_none(results, trials)}.")
    first = [trial for trial in known if seen.setting(trial) == seen.setting(known[0])]
    trial = max(first, key=lambda one: one.batch)
    trace = seen.traces(results, trial)[0][1]
    what = seen.ran([trial])
    rows = [
        {
            what: one.name,
            "does": f"{one.kind.replace('_', ' ')}" + (f", {one.algorithm.replace('_', ' ')}" if one.algorithm else ""),
            "of all": percent(one.seconds / trace.kernel_s),
            "a step": counted(one.count / trace.steps),
            "each (µs)": one.seconds / one.count * 1e6 if one.count else None,
        }
        for one in trace.longest[:LONGEST]
    ]
    if not rows:
        return Text(f"The trace of {seen.name(trial)} names no {what}.")
    return Table(
        pd.DataFrame(rows, dtype=object),
        f"The {what}s of {seen.name(trial)} that take most time, {len(rows)} by name, their names shortened; a step "
        f"runs {sum(one.count for one in trace.kernels.values()) / trace.steps:,.0f}, and another pass may have chosen "
        f"others. {seen.first_pass(results, [trial])}.",
    )
