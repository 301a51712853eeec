"""The same training on several hosts of one profile: what an interval over passes of one host does not say.

Passes on a host vary in what a fresh process and its moment change. Another host has another processor and other
neighbours, which a step that waits for launches feels most. So an interval is of its host, and here stands how often
it holds what other hosts measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple

import pandas as pd

from labkit.analysis.format import with_interval
from labkit.analysis.speed import name_of
from labkit.analysis.table import Table, Text
from labkit.recipes import engine_name
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import ASKED_AFTER, Trial

# What is asked once a trial was timed, or while it is, makes no other training of it.
_BESIDE = {name: getattr(Trial(), name) for name in (*ASKED_AFTER, "energy_windows")}


class Seen(NamedTuple):
    """What a host measured of a training, and in which study."""

    host: str
    study: str
    rate: Interval


def seen(shown: Sequence[Results]) -> dict[Trial, list[Seen]]:
    """Images/s of every timed training that at least two hosts have, by the training."""
    found: dict[Trial, dict[str, Seen]] = {}
    for results in shown:
        for trial in results.trials(workload="train", epochs=0):
            rate = results.interval(trial, "images_per_s")
            if rate is not None and rate.low is not None:
                of_trial = found.setdefault(replace(trial, **_BESIDE), {})
                of_trial.setdefault(str(results.host_id), Seen(str(results.host_id), results.study.id, rate))
    return {trial: list(hosts.values()) for trial, hosts in found.items() if len(hosts) > 1}


def held(several: dict[Trial, list[Seen]]) -> tuple[int, int]:
    """In how many pairs a host's interval holds another host's mean, and of how many."""
    pairs = [(one, other) for hosts in several.values() for one, other in permutations(hosts, 2)]
    return sum(_holds(one.rate, other.rate.point) for one, other in pairs), len(pairs)


def _holds(interval: Interval, value: float) -> bool:
    return interval.low is not None and interval.high is not None and interval.low <= value <= interval.high


def sentence(shown: Sequence[Results]) -> str:
    """Of what an interval is, and how far that carries; empty where one host measured everything."""
    several = seen(shown)
    inside, pairs = held(several)
    if not pairs:
        return ""
    hosts = {one.host for found in several.values() for one in found}
    apart = sorted(_most_over_least(found) for found in several.values())
    trainings = "One training was" if len(several) == 1 else f"{len(several)} trainings were"
    return (
        f"Intervals are over the passes of one host, and speak of that host. {trainings} measured on several of "
        f"{len(hosts)} hosts, which differ in them by {apart[0]:.2f}x to {apart[-1]:.2f}x; in {pairs - inside} of "
        f"{pairs} pairs another host's mean lies outside a host's interval."
    )


def _most_over_least(found: Sequence[Seen]) -> float:
    rates = [one.rate.point for one in found]
    return max(rates) / min(rates)


def table(shown: Sequence[Results]) -> Table | Text:
    """Each training with what every host measured of it."""
    several = seen(shown)
    if not several:
        return Text("No training was measured on several hosts.")
    inside, pairs = held(several)
    rows = [
        {
            "training": _name(trial, several),
            "images/s": "; ".join(map(_words, found)),
            "most over least": f"{_most_over_least(found):.2f}x",
        }
        for trial, found in several.items()
    ]
    return Table(
        pd.DataFrame(rows, dtype=object),
        "Images/s of the same training on several hosts, with the 95 % interval over each host's passes and the number "
        f"of its study. In {inside} of {pairs} pairs a host's interval holds another host's mean.",
    )


def _name(trial: Trial, beside: Iterable[Trial]) -> str:
    """Its loader too: one that makes a dozen launches a step costs a step that waits for launches."""
    loader = ", images by one kernel" if trial.loader == "device" and engine_name(trial) == "plain" else ""
    return name_of(trial, beside) + loader


def _words(one: Seen) -> str:
    """`19,560 [16,330, 23,440] (01)`."""
    return f"{with_interval(one.rate, 'images_per_s', unit=False)} ({one.study[:2]})"
