"""Pictures of the batch size: throughput and time per epoch against it, and what a tuned engine gains at each."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.analysis import engines
from labkit.analysis.figure import Figure
from labkit.analysis.format import number
from labkit.analysis.speed import NOTHING
from labkit.analysis.studies import against_batch
from labkit.analysis.table import Text
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

TUNED_IS = "Tuned and plain differ in precision too (07_precision separates the two)."


def throughput(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s against the batch, a panel a model, beside what the nominal peaks of each precision allow."""
    return against_batch.throughput(
        results,
        trials,
        name="batch-throughput",
        what="Training throughput against the batch",
        does="images",
        note=_note(trials),
    )


def epoch_time(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Seconds per epoch against the batch, a panel a model."""
    if not trials:
        return NOTHING
    data = engines.values(results, trials, "epoch_s").assign(bound=None)
    if data["value"].isna().all():
        return Text(
            "No trial has a time per epoch: none gave a result, or none says how many training images there are."
        )
    images = next((found for trial in trials if (found := results.fact(trial, "train_images"))), None)
    of = f" of {images:,} images" if images else ""
    return against_batch.against_batch(
        results,
        trials,
        data,
        name="batch-epoch-time",
        label="seconds an epoch (log scale)",
        caption=f"Time per epoch{of} at the throughput of the timed blocks. {_note(trials)}",
        alt="Log-log line plots of the seconds an epoch takes against the batch size, by model and engine.",
        lost_at=0.96,
    )


def _note(trials: Sequence[Trial]) -> str:
    return TUNED_IS if len({trial.precision for trial in trials}) > 1 else ""


def speed_up(results: Results, trials: Sequence[Trial]) -> Figure | Text:
    """Images/s of each tuned engine over the plain loop, against the batch."""
    data = engines.ratios(results, engines.over_plain(results, engines.in_order(trials)), "images_per_s")
    known = data.dropna(subset=["value"])
    if not len(known):
        return Text("No tuned trial stands beside a plain one with a result, so there is no speed-up to show.")
    pairs = engines.over_plain(results, trials)
    shown = engines.in_order(list(dict.fromkeys(trial for pair in pairs for trial in pair)))
    low, high = known["value"].astype(float).min(), known["value"].astype(float).max()
    return against_batch.against_batch(
        results,
        shown,
        data.assign(bound=None),
        name="batch-speed-up",
        label="images/s over the plain loop's",
        log=False,
        caption=f"Speed-up of the tuned engines over the plain loop of the same model and batch, formed within each "
        f"pass first. {_note(shown)}",
        alt=f"Line plots of the speed-up over the plain loop against the batch size, a panel a model, a line an "
        f"engine, from {number(low)}x to {number(high)}x.",
    )
