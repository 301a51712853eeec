"""Effects of two trials: over passes, over images, or of epochs to a target that some runs never reach.

Two networks that scored the same images with the same weights give the same answers in every pass. So the independent
samples are the images, and not the passes. The interval is over the images of the first pass that both trials have.

A run that never reaches its target counts as all of its epochs, which is a lower bound. A ratio is then restricted to
the epochs that were run (a restricted mean in survival analysis), and its verdict is one-sided. A run that needs at
least 8 epochs needs more than a run that needs 3. The records do not show whether it needs at most 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pandas as pd

from workbook.claims.evidence import Side
from workbook.records.scored import Accuracy, Scored
from workbook.results import estimates
from workbook.statistics import Interval

LEARNED = 0.1  # top-1 below which a network has learned too little for a loss of accuracy to mean anything
EPOCHS = "epochs_to_target"


@dataclass(frozen=True)
class ByImage:
    """The effect of two trials over their images, or the `reason` for none; `note` says where passes disagree."""

    effect: Interval | None
    reason: str = ""
    note: str = ""


def is_by_image(over: Side, under: Side, metric: str) -> bool:
    """Return whether to compare two trials image by image: the metric is an accuracy and both trials are scored."""
    return over is not under and metric in ("top1", "top5") and bool(over.trial.scored and under.trial.scored)


def compare_images(over: Side, under: Side, metric: str, form: str) -> ByImage:
    """Return the "ratio" or "difference" of two accuracies, with its paired 95 % interval."""
    sides = of_passes(over), of_passes(under)
    if not set(sides[0]) & set(sides[1]):
        return ByImage(None, over.failure() or under.failure() or "no run scored the images of both")
    passes = [scored for side in sides for scored in side.values()]
    for what, hashes in (
        ("weights", {scored.weights_sha256 for scored in passes}),
        ("images", {scored.images_sha256 for scored in passes}),
    ):
        if len(hashes) > 1:
            return ByImage(None, f"the configurations or their runs do not have the same {what}")
    best = max(scored.share("top1") for scored in passes)
    if best < LEARNED:
        return ByImage(None, f"the networks are right on only {best:.1%} of the images: too few to measure a loss")
    hits = [{number: scored.hits(cast(Accuracy, metric)) for number, scored in side.items()} for side in sides]
    above, below = (
        pd.concat(pd.DataFrame({"pass_number": n, "image": range(len(of)), metric: of}) for n, of in side.items())
        for side in hits
    )
    effect = estimates.compare(form, above, below, metric)
    most = max(int((later != side[min(side)]).sum()) for side in hits for later in side.values())
    note = f"runs differ in up to {most:,} images; the first run is taken" if most else ""
    return ByImage(effect, "" if effect else "an accuracy of 0 has no ratio", note)


def of_passes(side: Side) -> dict[int, Scored]:
    """Return pass number -> the images that the pass scored."""
    by_pass = {record.pass_number: record.blocks for record in side.results.ok(side.trial)}
    return {number: blocks.scored for number, blocks in by_pass.items() if blocks and blocks.scored}


def short(side: Side) -> int:
    """Return the number of finished runs of a trial that did not reach their target."""
    return int(finished(side)[EPOCHS].isna().sum()) if side.trial.target_top1 else 0


def finished(side: Side) -> pd.DataFrame:
    """Return the rows of a trial's finished runs."""
    return side.rows[side.rows["status"] == "ok"]


def least_ratio(over: Side, under: Side) -> Interval | None:
    """Return the ratio of epochs to the target; a run that did not reach it counts as all its epochs."""
    above, below = (finished(side).fillna({EPOCHS: side.trial.epochs}) for side in (over, under))
    return estimates.compare("ratio", above, below, EPOCHS)
