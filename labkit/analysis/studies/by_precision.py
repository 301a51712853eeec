"""Precisions beside each other, in training and in inference: a table of throughput, and what papers printed of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, number, with_interval
from labkit.analysis.speed import title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.words import shown_effect
from labkit.papers import Paper
from labkit.recipes import engine_name
from labkit.registry import METRICS
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial


@dataclass(frozen=True)
class PublishedRatio:
    """Images/s of one precision over another, as a paper prints it."""

    over: str
    under: str
    low: float
    high: float
    hardware: list[str]
    where: str


def published_ratios(papers: Sequence[Paper], study: str) -> list[PublishedRatio]:
    """The magnitudes that claims of a study have of throughput in one precision over another."""
    found = []
    for paper in papers:
        for claim in paper.claims:
            for test in claim.tests:
                if claim.study_of(test) != study or test.metric != "images_per_s" or "precision" not in test.over:
                    continue
                for one in test.published:
                    low, high = one.value if isinstance(one.value, tuple) else (one.value, one.value)
                    over, under = (str(side["precision"]).upper() for side in (test.over, test.under))
                    where = f"'{paper.citation.title}', {claim.where}"
                    found.append(PublishedRatio(over, under, low, high, one.hardware, where))
    return found


def published_words(published: Sequence[PublishedRatio]) -> str:
    """The published ratios in a sentence."""
    told = [
        f"{one.over} over {one.under} {number(one.low)}x on {listing(one.hardware)} ({one.where})" for one in published
    ]
    return f"Published: {'; '.join(told)}." if told else ""


def throughput_table(
    results: Results, trials: Sequence[Trial], pairs: Iterable[tuple[Trial, Trial]], *, over: str, said: str
) -> Table | Text:
    """Images/s of every trial, as a ratio to its partner in `pairs`, and memory; a failure is a row.

    `over` names the partners, `said` ends the caption.
    """
    if not trials:
        return Text(f"There are no timed trials of {results.profile.title} yet: nothing to show here.")
    partners, memory, beside = dict(pairs), METRICS["memory_bytes"], f"over {over}"
    rows = []
    for trial in trials:
        ratio = engines.ratio(results, trial, partners.get(trial), "images_per_s")
        used = results.fact(trial, "memory_bytes")
        rows.append(
            {
                "model": title(trial),
                "px": trial.image_px,
                "batch": trial.batch,
                "engine": engine_name(trial),
                "precision": trial.precision.upper(),
                "images/s": with_interval(results.interval(trial, "images_per_s"), "images_per_s", unit=False),
                beside: shown_effect(ratio, "images_per_s", "ratio") if ratio else None,
                "memory (GiB)": used * memory.scale if used is not None else None,
                "n": len(results.ok(trial)),
                "no result": engines.status_without_result(results, trial),
            }
        )
    frame = pd.DataFrame(rows, dtype=object)
    return Table(
        engines.concise(frame, (beside, "memory (GiB)", "no result")),
        f"{engines.conditions(results, list(trials))}. 95 % intervals over passes. {said}",
    )
