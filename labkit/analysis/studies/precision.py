"""What lower precision buys in training: the answer in words, tables, parity of the loss, what was published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from labkit.analysis import engines, summary
from labkit.analysis.format import least_to_most, listing, number
from labkit.analysis.speed import name_of, title, word
from labkit.analysis.studies import convergence
from labkit.analysis.studies.by_precision import throughput_table
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


def headline(results: Results, timed: Sequence[Trial], runs: Sequence[Trial]) -> Text:
    """The answer first: what each precision buys over FP32, and how far the losses of the training runs lie apart."""
    if not any(results.ok(trial) for trial in (*timed, *runs)):
        return engines.nothing(results)
    said = [_gains(results, timed), parity_sentence(results, runs), _unsupported(results, timed)]
    return Text("\n\n".join(part for part in said if part))


def _gains(results: Results, timed: Sequence[Trial]) -> str:
    data = ratios(results, timed).dropna(subset=["value"])
    said = []
    for engine, of_engine in data.groupby("engine", sort=False):
        gains = []
        for precision, one in of_engine.groupby("precision", sort=False):
            told = [
                (row["value"], f"{engines.ratio_words(row)} ({row['model']}, {row['image_px']} px)")
                for _, row in one.iterrows()
            ]
            gains.append(f"{precision} {least_to_most(told)}")
        batches = listing([f"{batch:,}" for batch in sorted(set(of_engine["batch"]))])
        said.append(f"Images/s over FP32's with {engine}, batch {batches}: {'; '.join(gains)}.")
    return "\n\n".join(reversed(said))  # what is captured first: where no launch is waited for, arithmetic decides


def parity_sentence(results: Results, runs: Sequence[Trial]) -> str:
    """How far each precision's final loss lies from FP32's, as an interval: never that they are the same."""
    said = []
    for trial in runs:
        single = replace(trial, precision="fp32")
        found = convergence.final_difference(results, trial, single, "loss") if trial != single else None
        if found:
            lost = convergence.not_finite(results, trial)
            said.append(f"{trial.precision.upper()} {shown_effect(found, 'loss', 'difference')}{lost}")
    if not said:
        return ""
    known = next(trial for trial in runs if results.ok(trial))
    return (
        f"Training loss after {word(known, 'epochs')} of {title(known)} on {known.data}, "
        f"minus FP32's: {'; '.join(said)}. An interval that holds zero rules out only differences larger than it."
    )


def _unsupported(results: Results, timed: Sequence[Trial]) -> str:
    reasons: dict[str, list[str]] = {}
    for trial in timed:
        if why := engines.failure(results, trial):
            alike = [other for other in timed if other.precision == trial.precision]
            lacking = not any(results.ok(other) for other in alike)
            reasons.setdefault(why, []).append(trial.precision.upper() if lacking else name_of(trial, timed))
    return " ".join(f"{'; '.join(dict.fromkeys(names))} gave no result ({why})." for why, names in reasons.items())


def ratios(results: Results, trials: Sequence[Trial]) -> pd.DataFrame:
    """Images/s over FP32's, the trial being the same otherwise; within passes first."""
    return engines.ratios(results, engines.over_fp32(results, trials), "images_per_s")


def table(results: Results, timed: Sequence[Trial]) -> Table | Text:
    """Images/s, ratio over FP32 and memory of every timed trial."""
    return throughput_table(
        results,
        engines.in_order(timed),
        engines.over_fp32(results, timed),
        over="FP32",
        said="Over FP32: of the trial that differs in nothing but precision, within each pass first.",
    )


def parity(results: Results, runs: Sequence[Trial]) -> Table | Text:
    """The end of the training runs beside FP32's."""
    single = next((trial for trial in runs if trial.precision == "fp32" and results.ok(trial)), None)
    return convergence.table(results, engines.in_order(runs), than=single)


def limitations(results: Results, timed: Sequence[Trial], runs: Sequence[Trial]) -> Text:
    """What these numbers do not say."""
    said = []
    if timed:
        said.append(
            "All trials compared are channels-last, so that precision is the only difference; tensor cores take that "
            "format, and FP32 need not be fastest in it. FP16 and BF16 are mixed precision: weights, or masters "
            "of them, stay in FP32."
        )
    if any(trial.optimizer == "sgd_master" for trial in timed):
        said.append(
            "The compiled trials keep BF16 weights with FP32 masters and have no FP32 twin: they stand beside the "
            "others, without a ratio."
        )
    known = [trial for trial in runs if results.ok(trial)]
    if known:
        said.append(
            f"Parity is of {title(known[0])}, {word(known[0], 'epochs')} on "
            f"{known[0].data} at one learning rate ({number(known[0].learning_rate)}, "
            f"{known[0].schedule.replace('_', '-')}); a longer training may part where a short one does not. "
            f"{convergence.NO_ACCURACY[:1].upper()}{convergence.NO_ACCURACY[1:]}."
        )
    rest = summary.limitations(results, list(timed) or list(known)).body
    return Text("\n\n".join([*said, *([rest] if rest else [])]))
