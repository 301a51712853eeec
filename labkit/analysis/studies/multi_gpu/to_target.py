"""How many epochs a training takes to a fixed accuracy on one device and on several: what more devices cost in epochs.

Several devices see a larger total batch in each step, or the same; their rate is the one's, or larger by their number,
with a warm-up or without; their gradients are averaged, or stale when they are applied. Each is a run of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.figure import Figure
from labkit.analysis.format import listing, number, percent, with_interval
from labkit.analysis.studies import convergence
from labkit.analysis.studies.multi_gpu.scaling import counted
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Side
from labkit.analysis.verdicts.reaching import least, least_ratio, short
from labkit.analysis.verdicts.words import shown_effect
from labkit.records import Record
from labkit.results.from_result import epochs_to_target
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, log_interval
from labkit.trial import Trial

NOTHING = Text("No training run on several devices has a result, so nothing is said of epochs.")


def runs(results: Results) -> list[Trial]:
    """The training runs that have a target: one device first, then as `named` tells them apart."""
    found = [trial for trial in convergence.runs(results) if trial.target_top1]
    return sorted(found, key=lambda t: (t.devices, t.updates != "synchronous", t.learning_rate, t.schedule, t.scaling))


def alone(trials: Sequence[Trial]) -> Trial | None:
    """The run on one device."""
    return next((trial for trial in trials if trial.devices == 1), None)


def named(trial: Trial, one: Trial | None) -> str:
    """`1 GPU`; `4 GPUs, total batch 256, rate x4, warm-up`; `4 learners on 1 GPU, batch 64 each, stale updates`."""
    if trial.devices == 1:
        return f"{counted(trial)}, batch {trial.batch}"
    said = [counted(trial), f"total batch {trial.batch_of_step}"]
    if one is not None and trial.learning_rate != one.learning_rate:
        said.append(f"rate x{trial.learning_rate / one.learning_rate:g}")
    if trial.schedule == "warm_up":
        said.append("warm-up")
    if trial.updates == "asynchronous":
        said[1] = f"batch {trial.batch_of_device} each"
        said.append("stale updates")
    return ", ".join(said)


def over_one(results: Results, trial: Trial, one: Trial) -> str | None:
    """Epochs to the target over those of one device, seed by seed: `2.1x [1.9, 2.3]`, `at least 2.5x`, or nothing.

    A run that never gets there counts as all its epochs, so the ratio is then a least (or, of one device, a most), and
    of its interval one end says something. Where neither gets there it says nothing.
    """
    late, early = (short(Side(results, this)) for this in (trial, one))
    ratio = least_ratio(Side(results, trial), Side(results, one))
    if ratio is None or (late and early):
        return None
    if late or early:
        word, end, name = ("at least", ratio.low, "lower") if late else ("at most", ratio.high, "upper")
        ended = f" ({name} end {number(end)}x)" if end is not None else ""
        return f"{word} {number(ratio.point)}x{ended}"
    return shown_effect(ratio, "epochs_to_target", "ratio")


def epochs_words(results: Results, trial: Trial) -> str | None:
    """Epochs to the target over all runs; `at least` where some never got there and count as all their epochs."""
    side = Side(results, trial)
    values = list(least(side).values())
    if not values:
        return None
    if short(side):
        return f"at least {number(log_interval(values).point)}"
    return with_interval(log_interval(values), "epochs_to_target", unit=False)


def seconds_to_target(record: Record) -> float | None:
    """Seconds of training until the target, validation not counted; None where it was not reached."""
    needed = epochs_to_target(record)
    if needed is None or record.epochs is None:
        return None
    times = [epoch.train_s for epoch in record.epochs.epochs]
    whole = min(int(needed), len(times))
    return sum(times[:whole]) + (needed - whole) * (times[whole] if whole < len(times) else 0.0)


def time_to_target(results: Results, trial: Trial) -> Interval | None:
    """Seconds to the target, where all runs came to it and seconds say something of the devices."""
    values = [seconds for one in results.ok(trial) if (seconds := seconds_to_target(one)) is not None]
    if not values or len(values) < len(results.ok(trial)) or not trial.has_time:
        return None
    return log_interval(values)


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Epochs and seconds to the target of every run, beside one device's, and the accuracy at the end."""
    if not any(results.ok(trial) for trial in trials):
        return NOTHING
    one = alone(trials)
    rows: list[dict[str, Any]] = []
    for trial in trials:
        rows.append(
            {
                "run": named(trial, one),
                "updates": _updates(results, trial),
                "epochs": epochs_words(results, trial),
                "over one device": over_one(results, trial, one) if one and trial != one else None,
                "seconds": with_interval(time_to_target(results, trial), "run_s", unit=False),
                "top-1 (%)": with_interval(convergence.final(results, trial, "top1"), "top1", unit=False),
                "no result": engines.status_without_result(results, trial),
            }
        )
    first = next(trial for trial in trials if results.ok(trial))
    frame = engines.concise(pd.DataFrame(rows, dtype=object), ("no result",))
    timed = [trial for trial in trials if trial.has_time and trial != one]
    if not timed:
        frame = frame.drop(columns="seconds")
    return Table(
        frame,
        f"Updates of an epoch, and epochs until the validation accuracy reaches {percent(first.target_top1)}, which "
        f"was fixed before, on a straight line between two epochs; ratios are of runs with the same seed. A run that "
        f"never reaches it counts as its {first.epochs} epochs, which is the least that it may need "
        f"({_short_sentence(results, trials)}). {_seconds_are(trials, timed)}Top-1 is after the last epoch. "
        f"{engines.conditions(results, list(trials))}; {convergence.NO_ACCURACY}.",
    )


def _seconds_are(trials: Sequence[Trial], timed: Sequence[Trial]) -> str:
    """Of what the seconds are, and why some runs have none; `timed` are the runs on several devices that have."""
    if not timed:
        shared = any(trial.placement == "together" for trial in trials)
        of = "learners that share a device say nothing of several devices" if shared else "stale updates say nothing"
        return f"Seconds of {of}, so none are given. "
    stale = any(not trial.has_time for trial in trials)
    why = "; those of stale updates say nothing, since every device repeats all updates" if stale else ""
    return f"Seconds are of training until then{why}. "


def _short_sentence(results: Results, trials: Sequence[Trial]) -> str:
    """How many runs did not come to the target."""
    late = sum(len(short(Side(results, trial))) for trial in trials)
    return f"{late} of {sum(len(results.ok(trial)) for trial in trials)} runs did not"


def _updates(results: Results, trial: Trial) -> int | None:
    """Updates of the weights in an epoch; stale ones are one a device and step."""
    each = trial.devices if trial.updates == "asynchronous" else 1
    steps = [record.epochs.epochs[0].steps for record in results.ok(trial) if record.epochs is not None]
    return steps[0] * each if steps else None


def sentence(results: Results, trials: Sequence[Trial]) -> str:
    """What several devices need of the epochs that one needs, and the seconds to the target on one and on several."""
    one = alone(trials)
    if one is None or short(Side(results, one)) or not results.ok(one):
        return _never(results, trials)
    said = [
        f"{named(trial, one).removeprefix(counted(trial) + ', ')} {ratio}"
        for trial in trials
        if trial != one and (ratio := over_one(results, trial, one))
    ]
    if not said:
        return ""
    several = counted(max(trials, key=lambda trial: trial.devices))
    reached = f"To {percent(one.target_top1)} top-1, {several} take of the epochs that one takes"
    return f"{reached}: {'; '.join(said)}.{_seconds(results, trials, one)}"


def _seconds(results: Results, trials: Sequence[Trial], one: Trial) -> str:
    """The fastest to the target among several devices, beside one."""
    base = time_to_target(results, one)
    known = [(time, trial) for trial in trials if trial != one and (time := time_to_target(results, trial))]
    if base is None or not known:
        return ""
    best, trial = min(known, key=lambda pair: pair[0].point)
    return (
        f" In seconds of training one takes {with_interval(base, 'run_s')}, the fastest of several "
        f"({named(trial, one)}) {with_interval(best, 'run_s')}."
    )


def _never(results: Results, trials: Sequence[Trial]) -> str:
    ended = [trial for trial in trials if results.ok(trial)]
    if not ended:
        return ""
    reached = [
        named(trial, None)
        for trial in ended
        if any(epochs_to_target(record) is not None for record in results.ok(trial))
    ]
    target = percent(ended[0].target_top1)
    return f"Only {listing(reached)} came to {target} top-1." if reached else f"No run came to {target} top-1."


def curves(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Loss and accuracy of the runs against epochs and seconds."""
    one = alone(trials)
    return convergence.curves(results, trials, naming=lambda trial: named(trial, one))
