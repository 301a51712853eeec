"""Comparison of two accuracies image by image: both networks scored the same images with the same weights.

The weights are the same in every pass, so the independent samples are the images, not the passes. The interval is over
the images of the first pass that both trials have. A note says in how many images other passes disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from workbook.claims.evidence import Side
from workbook.records.scored import Accuracy, Scored
from workbook.statistics import Interval, paired_share_difference, paired_share_ratio

LEARNED = 0.1  # top-1 below which a network has learned too little for a loss of accuracy to mean anything


@dataclass(frozen=True)
class ByImage:
    """The effect of two trials over their images, or the `reason` for none; `note` says where passes disagree."""

    effect: Interval | None
    reason: str = ""
    note: str = ""


def is_by_image(over: Side, under: Side, metric: str) -> bool:
    """Return whether to compare two trials image by image: the metric is an accuracy and both trials are scored."""
    return metric in ("top1", "top5") and bool(over.trial.scored and under.trial.scored)


def compare_images(over: Side, under: Side, metric: str, *, as_ratio: bool) -> ByImage:
    """Return the accuracy of `over` minus (`as_ratio`: divided by) that of `under`, with its paired 95 % interval."""
    accuracy = cast(Accuracy, metric)
    first, second = of_passes(over), of_passes(under)
    shared = sorted(set(first) & set(second))
    if not shared:
        return ByImage(None, over.failure() or under.failure() or "no run scored the images of both")
    passes = [*first.values(), *second.values()]
    for what, hashes in (
        ("weights", {scored.weights_sha256 for scored in passes}),
        ("images", {scored.images_sha256 for scored in passes}),
    ):
        if len(hashes) > 1:
            return ByImage(None, f"the configurations or their runs do not have the same {what}")
    best = max(scored.share("top1") for scored in passes)
    if best < LEARNED:
        return ByImage(None, f"the networks are right on only {best:.1%} of the images: too few to measure a loss")
    a, b = (side[shared[0]].hits(accuracy) for side in (first, second))
    effect = paired_share_ratio(a, b) if as_ratio else paired_share_difference(a, b)
    most = 0
    for side in (first, second):
        hits = [side[number].hits(accuracy) for number in sorted(side)]
        most = max([most, *(int((later != hits[0]).sum()) for later in hits[1:])])
    note = f"runs differ in up to {most:,} images; the first run is taken" if most else ""
    return ByImage(effect, "" if effect else "an accuracy of 0 has no ratio", note)


def of_passes(side: Side) -> dict[int, Scored]:
    """Return pass number -> the images that the pass scored."""
    by_pass = {record.pass_number: record.blocks for record in side.results.ok(side.trial)}
    return {number: blocks.scored for number, blocks in by_pass.items() if blocks and blocks.scored}
