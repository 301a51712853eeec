"""What the batch size buys: the answer in words, the tables, and what they do not say."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis import engines, summary
from labkit.analysis.format import least_to_most, listing, number, with_interval
from labkit.analysis.speed import name_of, title
from labkit.analysis.studies import convergence
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.recipes import engine_name, is_plain
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval, ratio_interval
from labkit.trial import Trial

SMALL, LARGE = 64, 256  # the batches that the paper compares


def headline(results: Results, timed: Sequence[Trial], runs: Sequence[Trial]) -> Text:
    """The answer first: what a larger batch buys, what a tuned engine does, what accuracy the runs end with."""
    known = [trial for trial in timed if results.ok(trial)]
    if not known and not any(results.ok(trial) for trial in runs):
        return engines.nothing(results)
    said = [
        _gain(results, known),
        engines.tuned_sentence(results, known),
        runs_sentence(results, runs),
        _failed(results, timed),
    ]
    return Text("\n\n".join(part for part in said if part))


def large_over_small(results: Results, trials: Sequence[Trial]) -> list[tuple[Trial, Interval]]:
    """Images/s at the larger of the paper's batches over the smaller: each trial at the larger one, with its ratio."""
    found = []
    for trial in trials:
        alike = {name: value for name, value in trial.as_dict().items() if name != "batch"}
        if trial.batch != LARGE or trial.epochs:
            continue
        small = Trial(**alike, batch=SMALL)
        ratio = ratio_interval(results.values(trial, "images_per_s"), results.values(small, "images_per_s"))
        if ratio:
            found.append((trial, ratio))
    return found


def _gain(results: Results, known: Sequence[Trial]) -> str:
    gains = []
    for engine in dict.fromkeys(engine_name(trial) for trial in known):
        of = large_over_small(results, [trial for trial in known if engine_name(trial) == engine])
        told = [(r.point, f"{shown_effect(r, 'images_per_s', 'ratio')} ({title(trial)})") for trial, r in of]
        gains += [f"{engine} {least_to_most(told)}"] if told else []
    said = [f"Images/s at batch {LARGE} over batch {SMALL}: {'; '.join(gains)}."] if gains else []
    rates = [(rate, trial) for trial in known if (rate := results.interval(trial, "images_per_s"))]
    if rates:
        best, trial = max(rates, key=lambda pair: pair[0].point)
        said.append(f"The most is {with_interval(best, 'images_per_s')}: {name_of(trial, known)}.")
    return " ".join(said)


def runs_sentence(results: Results, runs: Sequence[Trial]) -> str:
    """Top-1 of the training runs at the end, and the difference of the paper's two batches."""
    known = [trial for trial in runs if convergence.final(results, trial, "top1")]
    if not known:
        return ""
    ends = "; ".join(
        f"{convergence.run_name(trial, known)} {with_interval(convergence.final(results, trial, 'top1'), 'top1')}"
        for trial in known
    )
    said = (
        f"After {listing([str(n) for n in sorted({trial.epochs for trial in known})])} "
        f"{'epoch' if {trial.epochs for trial in known} == {1} else 'epochs'} of {title(known[0])} on "
        f"{listing(sorted({trial.data for trial in known}))} the top-1 accuracy is {ends}"
    )
    small, large = (next((t for t in known if t.batch == batch), None) for batch in (SMALL, LARGE))
    both = convergence.final_difference(results, large, small, "top1") if small and large else None
    if both:
        said += f"; batch {LARGE} minus batch {SMALL}: {shown_effect(both, 'top1', 'difference')}"
    return f"{said} ({convergence.NO_ACCURACY})."


def _failed(results: Results, timed: Sequence[Trial]) -> str:
    reasons: dict[str, list[str]] = {}
    for trial in timed:
        if why := engines.failure(results, trial):
            reasons.setdefault("Out of memory" if why.startswith("oom") else f"No result ({why})", []).append(
                name_of(trial, timed)
            )
    return " ".join(f"{why}: {'; '.join(names)}." for why, names in reasons.items())


def table(results: Results, timed: Sequence[Trial]) -> Table | Text:
    """Images/s and time per epoch of every timed trial; a failure is a row."""
    if not timed:
        return Text(f"There are no timed trials of {results.profile.title} yet: nothing to show here.")
    pairs = dict(engines.over_plain(results, timed))
    rows = []
    for trial in timed:
        ratio = engines.ratio(results, trial, pairs.get(trial), "images_per_s")
        rows.append(
            {
                "model": title(trial),
                "batch": trial.batch,
                "engine": f"{engine_name(trial)}, {trial.precision.upper()}",
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                "over plain": shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "epoch (s)": with_interval(results.interval(trial, "epoch_s"), "epoch_s", unit=False),
                "n": len(results.ok(trial)),
                "no result": engines.status_without_result(results, trial),
            }
        )
    frame = pd.DataFrame(rows, dtype=object)
    return Table(
        engines.concise(frame, ("over plain", "no result")),
        f"{engines.conditions(results, list(timed))}. 95 % intervals over passes; ratios are formed within each pass "
        f"first. An epoch: the training images at that throughput.",
    )


def limitations(results: Results, timed: Sequence[Trial], runs: Sequence[Trial]) -> Text:
    """What these numbers do not say."""
    said = []
    if any(not is_plain(trial) for trial in timed):
        said.append(
            "Plain and tuned differ in more than the engine: precision, memory format and optimiser differ too (the "
            "captions name them). How much of the gain is precision, study 07_precision takes apart."
        )
    known = [trial for trial in runs if results.ok(trial)]
    if known:
        one = known[0]
        said.append(
            f"The training runs have one model ({title(one)}), one learning rate for both batches "
            f"({number(one.learning_rate)} at most, {one.schedule.replace('_', '-')}), {engine_name(one)} in "
            f"{one.precision.upper()}, {one.data} and {one.epochs} of the paper's 50 epochs. A "
            f"learning rate tuned for each batch might order them otherwise. "
            f"{convergence.NO_ACCURACY[:1].upper()}{convergence.NO_ACCURACY[1:]}."
        )
    rest = summary.limitations(results, list(timed) or list(known), memory=False).body
    return Text("\n\n".join([*said, *([rest] if rest else [])]))
