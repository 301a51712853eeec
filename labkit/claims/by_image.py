"""Accuracies compared image by image: two networks that answered the same images with the same weights.

The weights are the same in every pass, so passes are no independent draws of an accuracy: the images are. One pass's
images make the interval (the first that both trials have); that other passes answered otherwise is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from labkit.claims.evidence import Side
from labkit.records.scored import Accuracy, Scored
from labkit.statistics import Interval, paired_share_difference, paired_share_ratio

LEARNED = 0.1  # top-1 below which a network has learned too little for a loss of accuracy to mean anything


@dataclass(frozen=True)
class ByImage:
    """An effect of two trials over their images, or why there is none; `note` on what the passes do not agree in."""

    effect: Interval | None
    reason: str = ""
    note: str = ""


def is_by_image(over: Side, under: Side, metric: str) -> bool:
    """Whether two trials are to be compared in this metric image by image: they are scored trials."""
    return metric in ("top1", "top5") and bool(over.trial.scored and under.trial.scored)


def compare_images(over: Side, under: Side, metric: str, *, as_ratio: bool) -> ByImage:
    """The accuracy of one trial minus that of another (or over it), with its paired 95 % interval."""
    accuracy = cast(Accuracy, metric)
    first, second = of_passes(over), of_passes(under)
    shared = sorted(set(first) & set(second))
    if not shared:
        return ByImage(None, over.failure() or under.failure() or "no pass scored the images of both")
    every = [*first.values(), *second.values()]
    for what, found in (
        ("weights", {one.weights_sha256 for one in every}),
        ("images", {one.images_sha256 for one in every}),
    ):
        if len(found) > 1:
            return ByImage(None, f"the trials or their passes do not have the same {what}")
    best = max(one.share("top1") for one in every)
    if best < LEARNED:
        return ByImage(None, f"the networks are right on {best:.1%} of the images: too little to lose")
    a, b = (side[shared[0]].hits(accuracy) for side in (first, second))
    effect = paired_share_ratio(a, b) if as_ratio else paired_share_difference(a, b)
    return ByImage(effect, "" if effect else "an accuracy of 0 has no ratio", _disagreement(first, second, accuracy))


def of_passes(side: Side) -> dict[int, Scored]:
    """Pass number -> what it scored."""
    blocks = {record.pass_number: record.blocks for record in side.results.ok(side.trial)}
    return {number: one.scored for number, one in blocks.items() if one and one.scored}


def _disagreement(first: dict[int, Scored], second: dict[int, Scored], accuracy: Accuracy) -> str:
    most = 0
    for side in (first, second):
        hits = [side[number].hits(accuracy) for number in sorted(side)]
        most = max([most, *(int((one != hits[0]).sum()) for one in hits[1:])])
    return f"passes differ in up to {most:,} images; the first pass is taken" if most else ""
