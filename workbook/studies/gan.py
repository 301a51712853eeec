"""Rules of the WGAN study: the trainings that it compares, and the images of its generator."""

from __future__ import annotations

import pandas as pd

from workbook.show import Table
from workbook.show.templates import drawn
from workbook.trials.recipes import ADVERSARIAL
from workbook.words import STRICT

GRIDS = {
    "samples_before_png": "before training",
    "samples_png": "after training",
    "samples_real_png": "real images",
}


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the WGAN's rows of a table; `mode` is `STRICT` for the paper's loop: eager, FP32, NCHW, clipping.

    Its optimiser is RMSprop, which belongs to clipping (Arjovsky et al. 2017).
    """
    rows = frame[frame["workload"] == "gan"]
    loop = {"engine": "eager", "precision": "fp32", "memory_format": "contiguous", "constraint": "clipping"}
    loop["optimizer"] = ADVERSARIAL["optimizer"]
    is_loop = (rows[list(loop)] == pd.Series(loop)).all(axis=1)
    return rows.assign(mode=rows["mode"].mask(is_loop, STRICT))


def swept(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each configuration of `trainings` once: that with the fewest traced iterations, after the fewest steps.

    The other rows differ from one of these only in their trace, or generate images.
    """
    timed = rows[rows["samples"] == 0]
    for asked in ("traced_iterations", "steps_before"):
        timed = timed[timed[asked] == timed[asked].min()]
    return timed


def pictures(grids: pd.DataFrame, caption: str) -> Table:
    """Return the grids of images in `GRIDS` of the first run, side by side.

    `grids` are rows of `Results.facts`, whose `value` is a grid of images as PNG in base64.
    """
    first = grids[grids["pass_number"] == grids["pass_number"].min()].drop_duplicates("field").set_index("field")
    texts = first["value"].to_dict()
    cells = {title: [drawn("picture", texts[name], title)] for name, title in GRIDS.items() if name in texts}
    frame = pd.DataFrame(cells, dtype=object)
    return Table(frame, frame, caption if cells else "", heads=0)
