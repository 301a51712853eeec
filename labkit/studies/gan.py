"""Rules of the WGAN study: the trainings that it compares, and the images of its generator."""

from __future__ import annotations

import base64

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.data.ilsvrc2012 import decoded
from labkit.errors import DataError
from labkit.recipes import adversarial

GRIDS = {
    "samples_before_png": "before training",
    "samples_png": "after training",
    "samples_real_png": "real images",
}
GAP_PX = 2  # between the images of a grid (`labkit.workloads._samples`)


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the WGAN's rows of a table; `mode` is "baseline" for the paper's loop: eager, FP32, NCHW, clipping.

    Its optimiser is RMSprop, which belongs to clipping (Arjovsky et al. 2017).
    """
    rows = frame[frame["workload"] == "gan"]
    loop = {"engine": "eager", "precision": "fp32", "memory_format": "contiguous", "constraint": "clipping"}
    loop |= {"optimizer": adversarial("cpu")["eager"]["optimizer"]}
    is_loop = (rows[list(loop)] == pd.Series(loop)).all(axis=1)
    return rows.assign(mode=rows["mode"].mask(is_loop, "baseline"))


def swept(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each configuration of `trainings` once: that with the fewest traced iterations, after the fewest steps.

    The other rows differ from one of these only in their trace, or generate images.
    """
    timed = rows[rows["samples"] == 0]
    for asked in ("traced_iterations", "steps_before"):
        timed = timed[timed[asked] == timed[asked].min()]
    return timed


def pictures(grids: pd.DataFrame, each: int = 8) -> pd.DataFrame:
    """Return the first `each` images per kind in `GRIDS` of the first run: `title` (of the first of a kind), `pixels`.

    `grids` are rows of `Results.facts`, whose `value` is a grid of images as PNG in base64.
    """
    first = grids[grids["pass_number"] == grids["pass_number"].min()].drop_duplicates("field").set_index("field")
    rows = [
        {"title": title * (place == 0), "pixels": pixels}
        for field, title in GRIDS.items()
        if field in first.index
        for place, pixels in enumerate(_tiles(first.at[field, "value"], int(first.at[field, "image_px"]))[:each])
    ]
    return pd.DataFrame(rows, columns=["title", "pixels"])


def _tiles(png: str, edge_px: int) -> list[NDArray[np.uint8]]:
    """Return the images of a grid, row by row. Raise DataError for a text that holds no picture."""
    try:
        grid = np.asarray(decoded(base64.b64decode(png)))
    except Exception as error:  # Pillow raises nearly anything for a damaged image
        raise DataError(f"a record's grid of images can't be decoded ({error}).") from error
    tops, lefts = (range(0, length, edge_px + GAP_PX) for length in grid.shape[:2])
    return [grid[top : top + edge_px, left : left + edge_px] for top in tops for left in lefts]
