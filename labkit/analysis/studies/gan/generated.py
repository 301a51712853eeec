"""What a generator makes of noise before and after training, and the course of the critic's estimate."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis.draw import tidy
from labkit.analysis.figure import Figure, Theme
from labkit.analysis.format import number
from labkit.analysis.studies.gan.seen import series_of
from labkit.analysis.table import Text
from labkit.records import Record
from labkit.registry import SCALES
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial

ENOUGH = 500  # iterations after which digits became legible on a CPU, at mini-batch 64 with clipped weights in BF16
GRIDS = {
    "samples_before_png": "before training",
    "samples_png": "after training",
    "samples_real_png": "real images",
}


def samples(results: Results, trial: Trial | None) -> Figure | Text:
    """What the generator makes of the same noise before and after training, beside real images; below, the estimate."""
    records = [record for record in results.ok(trial) if "samples_png" in record.facts] if trial else []
    if trial is None or not records:
        return Text("No generator was asked for images here, so whether it learns can't be seen on this page.")
    record = records[0]
    count, course = iterations_of(record), distances(record)
    data = pd.DataFrame(course, columns=["iterations", "estimated distance"])

    def draw(figure: Any, theme: Theme) -> None:
        places = figure.add_gridspec(2, len(GRIDS), height_ratios=(1.4, 1))
        for place, (name, title) in enumerate(GRIDS.items()):
            axes = figure.add_subplot(places[0, place])
            axes.imshow(_pixels(record.facts[name]), interpolation="none")
            axes.set_title(title, fontsize=9.5, color=theme.ink)
            axes.set_axis_off()
        axes = figure.add_subplot(places[1, :])
        axes.plot(data["iterations"], data["estimated distance"], color=theme.palette[0], lw=1.4, marker="o", ms=3)
        axes.set_xlabel("iterations")
        axes.set_ylabel("estimate")
        tidy(axes, theme, grid="y")

    said = [
        f"{trial.samples} images that the generator makes of the same noise before training and after {count:,} "
        f"iterations, beside real ones, in sixteen colours each.",
        "Below: the critic's estimate of the distance between the two, which should fall once the critic has learned.",
        _learned(results, count, course),
        f"Pass {record.pass_number}: {trial.data}, mini-batch {trial.batch:,}, {series_of(trial, [trial])}, "
        f"{trial.constraint.replace('_', ' ')}; {results.describe()}.",
    ]
    return Figure(
        name="gan-samples",
        draw=draw,
        again=results.again,
        caption=" ".join(part for part in said if part),
        alt=f"Three grids of {trial.samples} small images: generated before training, generated after {count:,} "
        f"iterations, and real; below them a line of the critic's estimate over the iterations.",
        data=data if len(data) else pd.DataFrame({"images": list(GRIDS.values())}),
        size_in=(8.0, 4.4),
    )


def iterations_of(record: Record) -> int:
    """How many iterations a generator had learned from when it was asked for images."""
    assert record.blocks is not None
    timed = sum(record.blocks.warmup_steps) + record.blocks.steps_per_block * len(record.blocks.host_s)
    return max(int(record.trial["steps_before"]), timed)


def distances(record: Record) -> list[tuple[int, float]]:
    """The critic's estimate against the iterations: means of blocks, and of the iterations after them."""
    assert record.blocks is not None
    found, at = [], 0
    of_blocks = list(zip(record.blocks.warmup_steps, record.blocks.warmup_loss, strict=False))
    of_blocks += [(record.blocks.steps_per_block, loss) for loss in record.blocks.loss]
    for steps, loss in of_blocks:
        at += steps
        found.append((at, loss))
    later = [(int(after), loss) for after, loss in record.facts.get("later_loss", [])]
    return [(after, loss) for after, loss in [*found, *later] if loss is not None]


def _learned(results: Results, count: int, course: Sequence[tuple[int, float]]) -> str:
    """Does it train? Not shown after few iterations; after enough, whether the estimate fell from its maximum."""
    if count < ENOUGH:
        moved = f" and its estimate goes from {number(course[0][1], 2)} to {number(course[-1][1], 2)}" if course else ""
        return (
            f"Whether it trains is not shown here: after {count:,} iterations the critic is still learning{moved}; "
            f"legible images take some {ENOUGH:,} iterations.{_scale_that_shows(results)}"
        )
    if not course:
        return "No estimate was noted."
    at, most = max(course, key=lambda one: one[1])
    highest, last = number(most, 2), number(course[-1][1], 2)
    if last == highest:
        return f"It has not fallen: it is largest at the end, {last}."
    return f"It fell from {highest}, its largest (by iteration {at:,}), to {last}."


def _scale_that_shows(results: Results) -> str:
    """Which scale of the profile trains long enough."""
    for scale in SCALES[SCALES.index(results.scale) + 1 :]:
        after = results.profile.sweep(results.study.id, scale)["samples_after"]
        if isinstance(after, int) and after >= ENOUGH:
            return f" SCALE={scale} trains {after:,}."
    return ""


def _pixels(png: str) -> Any:
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"))
