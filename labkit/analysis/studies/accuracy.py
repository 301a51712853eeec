"""What INT8 loses: the answers of trained networks scored image by image, against FP32's of the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import MISSING, listing, number
from labkit.analysis.speed import title
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.by_image import ByImage, compare_images, of_passes
from labkit.analysis.verdicts.evidence import Side
from labkit.analysis.verdicts.words import shown_effect
from labkit.papers import Paper
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import Trial

TWIN = ("workload", "model", "image_px", "batch", "copies", "weights", "scored", "threads", "device")


def scored(results: Results) -> list[Trial]:
    """The trials at trained weights, whose answers are scored."""
    return engines.in_order(results.trials(workload="infer", weights="trained"))


def fastest_fp32(results: Results, trial: Trial) -> Trial | None:
    """The FP32 trial with the most images/s that is of the same network and batch, whatever its engine."""
    alike = results.trials(**{name: getattr(trial, name) for name in TWIN}, precision="fp32")
    rates = {other: rate.point for other in alike if (rate := results.interval(other, "images_per_s"))}
    return max(rates, key=lambda other: rates[other]) if rates else None


def int8_pairs(results: Results) -> list[tuple[Trial, Trial]]:
    """Each scored INT8 trial with the FP32 one that it is compared with: the fastest, else any."""
    pairs = []
    for trial in scored(results):
        if trial.precision != "int8":
            continue
        alike = results.trials(**{name: getattr(trial, name) for name in TWIN}, precision="fp32")
        single = fastest_fp32(results, trial) or next(iter(alike), None)
        if single is not None:
            pairs.append((trial, single))
    return pairs


def losses(results: Results, metric: str) -> list[tuple[Trial, ByImage]]:
    """What each network loses in INT8: FP32's accuracy minus INT8's over the same images, or why it is not known."""
    return [
        (int8, compare_images(Side(results, single), Side(results, int8), metric, as_ratio=False))
        for int8, single in int8_pairs(results)
    ]


def printed_loss(papers: Sequence[Paper], model: str, metric: str) -> float | None:
    """FP32's accuracy minus INT8's as a paper's table has them, a fraction of 1; None where none prints the model."""
    for paper in papers:
        for table in paper.tables:
            of_precisions = table.columns_are == "precision" and {"fp32", "int8"} <= set(table.columns)
            if of_precisions and table.metric == metric and model in table.rows:
                return table.si(model, "fp32") - table.si(model, "int8")
    return None


def tolerated(papers: Sequence[Paper], metric: str) -> float | None:
    """The loss of accuracy that a claim allows INT8 at most, a fraction of 1; None without such a claim."""
    bounds = [
        test.at_most
        for paper in papers
        for claim in paper.claims
        for test in claim.tests
        if test.shape == "difference" and test.metric == metric and test.under.get("precision") == "int8"
    ]
    return next((bound for bound in bounds if bound is not None), None)


def sentence(results: Results, papers: Sequence[Paper]) -> str:
    """The points of top-1 that each network loses, and what the claim allows; empty where nothing was scored."""
    found = [(trial, one.effect) for trial, one in losses(results, "top1") if one.effect]
    if not found:
        return ""
    told = [f"{title(trial)} {shown_effect(effect, 'top1', 'difference')}" for trial, effect in found]
    data = listing(sorted({trial.data for trial, _ in found}))
    line = tolerated(papers, "top1")
    beside = f" The largest loss that the claim allows is {number(line * 100)} points." if line else ""
    return (
        f"Top-1 accuracy lost by INT8 (FP32's minus INT8's, paired over {found[0][1].n:,} images of {data}): "
        f"{'; '.join(told)}.{beside}"
    )


def table(results: Results, papers: Sequence[Paper]) -> Table | Text:
    """Top-1 and top-5 in FP32 and INT8, their paired difference, and the published one beside it."""
    pairs = int8_pairs(results)
    if not pairs:
        return Text("No network was scored both in FP32 and in INT8, so there is no accuracy to compare.")
    rows = []
    for (int8, single), (_, first), (_, five) in zip(
        pairs, losses(results, "top1"), losses(results, "top5"), strict=True
    ):
        rows.append(
            {
                "model": title(int8),
                "FP32 top-1 (%)": _share(results, single, "top1"),
                "INT8 top-1 (%)": _share(results, int8, "top1"),
                "top-1 lost (points)": _points(first.effect),
                "top-5 lost (points)": _points(five.effect),
                "images that change": _changed(results, single, int8),
                "published, top-1": _printed(papers, int8.model, "top1"),
                "published, top-5": _printed(papers, int8.model, "top5"),
                "no result": first.reason.split(":")[0] if first.reason else None,
                "note": first.note or None,
            }
        )
    images = {one.images for int8, _ in pairs for one in of_passes(Side(results, int8)).values()}
    counted = f"{max(images):,} validation images" if images else "validation images"
    return Table(
        engines.concise(pd.DataFrame(rows, dtype=object), ("no result", "note")),
        f"Accuracy of the same weights on the same {counted}, scored by the engine that is timed. Lost: FP32's minus "
        f"INT8's, with the paired 95 % interval over images (Agresti & Min 2005); the passes have the same weights, so "
        f"they add nothing to it. Published: differences of the accuracies as printed, on ImageNet, in points. "
        f"{engines.conditions(results, [trial for pair in pairs for trial in pair])}.{_images_of(results, pairs)}",
    )


def _images_of(results: Results, pairs: Sequence[tuple[Trial, Trial]]) -> str:
    """What the scored images are, as the data set itself says, after a space."""
    said = [results.fact(trial, "data_description") for pair in pairs for trial in pair]
    return "".join(dict.fromkeys(f" {one}" for one in said if one))


def _share(results: Results, trial: Trial, metric: str) -> str:
    values = results.values(trial, metric)
    return number(next(iter(values.values())) * 100, 4) if values else MISSING


def _points(effect: Interval | None) -> str | None:
    return shown_effect(effect, "top1", "difference").replace(" points", "") if effect else None


def _changed(results: Results, single: Trial, int8: Trial) -> str | None:
    """Images that only one precision classifies rightly: gained and lost."""
    first, second = (next(iter(of_passes(Side(results, trial)).values()), None) for trial in (single, int8))
    if first is None or second is None or first.images != second.images:
        return None
    a, b = first.hits("top1"), second.hits("top1")
    return f"{int((a & ~b).sum()):,} lost, {int((~a & b).sum()):,} gained"


def _printed(papers: Sequence[Paper], model: str, metric: str) -> str:
    loss = printed_loss(papers, model, metric)
    return MISSING if loss is None else f"{loss * 100:.2f}"


def weights(results: Results) -> Table | Text:
    """Where the weights that are scored come from: how they were trained and how far that took them, or whose file."""
    rows: dict[str, dict[str, Any]] = {}
    for trial in scored(results):
        facts = results.fact(trial, "weights")
        if facts:
            rows[facts["sha256"]] = {
                "model": title(trial),
                "torchvision's file": facts.get("file"),
                "its SHA-256": facts["file_sha256"][:12] if "file_sha256" in facts else None,
                "epochs": facts.get("epochs"),
                "highest learning rate": facts.get("learning_rate"),
                "batch": facts.get("batch"),
                "precision": str(facts.get("precision", "")).upper() or None,
                "training images": facts.get("train_images"),
                "top-1 after training (%)": number(facts["top1"] * 100) if "top1" in facts else None,
                "trained in (s)": number(facts["took_s"]) if "took_s" in facts else None,
                "SHA-256": facts["sha256"][:12],
            }
    if not rows:
        reasons = [record.reason for record in results.failures() if record.trial.get("weights") == "trained"]
        why = next((reason for reason in reasons if reason), "no trial asked for them")
        return Text(f"No trained weights were scored: {why}.")
    frame = pd.DataFrame(list(rows.values()), dtype=object)
    given = "The weights that are scored are torchvision's, from files that the user gave; nothing was trained here."
    trained = (
        "The weights that are scored: where they come from, and the accuracy on the set's own validation images in the "
        "precision of the training. Training them is in no throughput on this page."
    )
    return Table(frame.dropna(axis=1, how="all"), given if is_torchvisions(results) else trained)


def is_torchvisions(results: Results) -> bool:
    """Whether the scored weights are torchvision's own."""
    return any("file" in (results.fact(trial, "weights") or {}) for trial in scored(results))
