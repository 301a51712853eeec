"""Two trainings of one kind: at once on half of the devices each, or in turns on all, beside one alone on all.

What is compared is the time until each has seen its training images once, at the throughput of the timed blocks.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import legend_above, log_axis, points, tidy
from labkit.analysis.figure import MARKERS, Figure, Theme
from labkit.analysis.format import number, percent, with_interval
from labkit.analysis.observations import spread
from labkit.analysis.speed import title
from labkit.analysis.studies.multi_gpu.scaling import counted
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import ARRANGEMENTS, Trial

WORDS = {"alone": "one alone", "at_once": "two at once", "in_sequence": "two in turns"}
NOTHING = Text("No two trainings were run at once, so there is nothing to compare.")


def groups(results: Results) -> list[list[Trial]]:
    """Trials that differ in nothing but the arrangement, where two jobs are among them; each in ARRANGEMENTS' order."""
    found: list[list[Trial]] = []
    for trial in results.trials(workload="train", epochs=0, arrangement="at_once"):
        alike = [engines.like(results, trial, arrangement=arrangement) for arrangement in ARRANGEMENTS]
        found.append([one for one in alike if one is not None])
    return sorted(found, key=lambda group: (group[0].model, group[0].devices))


def run_time(results: Results, trial: Trial) -> Interval | None:
    """Seconds until every job of the trial has seen its training images once."""
    return results.interval(trial, "run_s")


def ratio(results: Results, over: Trial, arrangement: str) -> Interval | None:
    """The run's time over that of another arrangement on the same devices, formed within each pass."""
    return engines.ratio(results, over, engines.like(results, over, arrangement=arrangement), "run_s")


def over_twice_alone(results: Results, trial: Trial) -> Interval | None:
    """A run's time over twice that of one job alone: what two jobs take of the time of one after the other."""
    found = ratio(results, trial, "alone")
    return None if found is None else found.scaled(0.5)


def table(results: Results) -> Table | Text:
    """The time of each arrangement, and that of two at once over the others."""
    found = groups(results)
    if not found:
        return NOTHING
    shown: list[dict[str, Any]] = []
    for group in found:
        for trial in group:
            busy = spread(results, trial, "utilisation")
            two = trial.arrangement != "alone"
            twice = over_twice_alone(results, trial) if two else None
            turns = ratio(results, trial, "in_sequence") if trial.arrangement == "at_once" else None
            shown.append(
                {
                    "network": title(trial),
                    "on": counted(trial),
                    "jobs": WORDS[trial.arrangement],
                    "time (s)": with_interval(run_time(results, trial), "run_s", unit=False),
                    "over 2 x one alone": shown_effect(twice, "run_s", "ratio") if twice else None,
                    "over two in turns": shown_effect(turns, "run_s", "ratio") if turns else None,
                    "utilisation": percent(busy.mean) if busy else None,
                    "n": len(results.ok(trial)),
                    "no result": engines.status_without_result(results, trial),
                }
            )
    trials = [trial for group in found for trial in group]
    return Table(
        engines.concise(pd.DataFrame(shown, dtype=object), ("utilisation", "no result")),
        "The time until each job has seen its training images once, at the throughput of the timed blocks; ratios are "
        "formed within each pass first. Two in turns take some steps of the one and then some of the other, which "
        "should be twice one alone. The batch of each device is held: a job on half of the devices has half the total "
        f"batch, and makes twice the updates of an epoch. {engines.conditions(results, trials)}. 95 % intervals.",
    )


def figure(results: Results) -> Figure | Text:
    """The time of each arrangement, a row for each network and number of devices."""
    found = [group for group in groups(results) if any(run_time(results, trial) for trial in group)]
    if not found:
        return NOTHING
    rows = [
        {
            "network": f"{title(trial)}, {counted(trial)}",
            "jobs": WORDS[trial.arrangement],
            **engines.ends(run_time(results, trial)),
        }
        for group in found
        for trial in group
    ]
    data = pd.DataFrame(rows)
    names = list(dict.fromkeys(data["network"]))

    def draw(picture: Any, theme: Theme) -> None:
        axes = picture.add_subplot()
        for index, jobs in enumerate(WORDS.values()):
            one = data[data["jobs"] == jobs]
            places = [names.index(name) + 0.22 * (index - 1) for name in one["network"]]
            points(axes, places, one, colour=theme.palette[index], marker=MARKERS[index], label=jobs, across=True)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("seconds until every job has seen its images once (log scale)")
        log_axis(axes, "x")
        tidy(axes, theme, grid="x")
        legend_above(picture, [axes], ncols=3)

    low, high = data["value"].astype(float).min(), data["value"].astype(float).max()
    trials = [trial for group in found for trial in group]
    return Figure(
        name="two-jobs",
        draw=draw,
        again=results.again,
        caption="Two trainings at once, on half of the devices each (on one device both), beside the two in turns on "
        f"all of them and one alone. {engines.conditions(results, trials)}. Bars: 95 % interval.",
        alt=f"Dot plot on a log axis of the seconds that each arrangement of jobs takes, from {number(low)} to "
        f"{number(high)}.",
        data=data,
        size_in=(8.0, 1.6 + 0.7 * len(names)),
    )


def sentence(results: Results) -> str:
    """Two at once over one after the other, network by network, on the most devices."""
    most: dict[str, Trial] = {}
    for group in groups(results):
        for trial in group:
            if trial.arrangement == "at_once" and over_twice_alone(results, trial):
                most[trial.model] = trial
    said = []
    for trial in most.values():
        effect = over_twice_alone(results, trial)
        assert effect is not None
        said.append(f"{title(trial)} on {counted(trial)} {shown_effect(effect, 'run_s', 'ratio')}")
    return f"Two jobs at once take, of twice the time of one alone: {'; '.join(said)}." if said else ""
