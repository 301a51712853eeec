"""One-time costs of compiling and capturing, and the time after which they have paid off."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.words import STRICT


def caches(regions: pd.DataFrame) -> pd.DataFrame:
    """Return how much a compiler took from its disk cache, by `record`.

    `compiler_cache` is "cold", "partly cached" or "cached".
    `regions` is `Results.facts("compiled_regions")`; records that compiled nothing are not in it.
    """
    counts = regions.pivot_table(index="record", columns="field", values="value", aggfunc="sum")
    counts = counts.reindex(columns=["compiled", "from the cache"]).fillna(0).reset_index()
    states = [counts["from the cache"] == 0, counts["compiled"] > 0]
    counts["compiler_cache"] = np.select(states, ["cold", "partly cached"], "cached")
    return counts[["record", "compiler_cache"]]


def costs(frame: pd.DataFrame, regions: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table of results that compiled or captured a step, with two more columns.

    `compiler_cache` is "cold" (the compiler found no graph of the step on the disk), "partly cached", "cached", or ""
    if nothing was compiled. `break_even_s` is the running time of strict FP32 of the same network and batch after
    which the cost has paid off, in seconds; NaN if the step is not faster. `regions` is
    `Results.facts("compiled_regions")`.
    """
    frame = frame.assign(compile_s=frame["compile_s"].fillna(frame["cached_compile_s"]))
    rows = frame.dropna(subset=["compile_s", "capture_s"], how="all").merge(caches(regions), on="record", how="left")
    rows["compiler_cache"] = rows["compiler_cache"].fillna("")
    same = ["model", "batch", "pass_number"]
    baseline = frame[frame["mode"] == STRICT][[*same, "step_s"]]
    rows = rows.merge(baseline, on=same, how="left", suffixes=("", "_of_baseline"))
    saved = rows["step_s_of_baseline"] - rows["step_s"]
    once_s = rows["compile_s"].fillna(0) + rows["capture_s"].fillna(0)
    return rows.assign(break_even_s=(once_s * rows["step_s_of_baseline"] / saved).where(saved > 0))
