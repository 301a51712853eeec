"""Rules of the profile study: what a step consists of, and what bounds it.

A GPU's kernels take as long under a profiler as without it; what the profiler slows is the host that launches them. So
kernels last as long as the trace says, and the step as long as it was timed. On a CPU the operators themselves are
slowed, so parts are shares of the traced step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.results import estimate
from labkit.show.labels import phrase
from labkit.trial import Trial

# Classes of kernels as a figure puts them together. The update counts as element-wise, which its kernels are: in a
# captured step nothing tells them from others. What is in none of these is in the fifth part, `OTHER`.
PARTS = {
    "convolution": ("convolution",),
    "matrix product": ("matrix_product",),
    "normalisation, pooling": ("batch_norm", "pooling"),
    "element-wise, layout": ("element_wise", "reduction", "layout", "loss", "optimiser"),
}
OTHER, WAITING = "copies, other", "waiting"
WAITS = 0.2  # of a step: a GPU that waits so long for launches does not get faster by faster kernels
NEAR_PEAK = 0.6  # of the kernels' time: a unit so busy bounds them (Nsight Compute, Kernel Profiling Guide)
COMPUTE, MEMORY, NO_UNIT = "compute-bound", "memory-bound", "no single bottleneck"
LAUNCH, OVERHEAD = "launch-bound", "overhead-bound"  # of a GPU, of a CPU
INCONCLUSIVE, UNKNOWN = "inconclusive", "not determined"
ROUNDING = 1e-6
UNITS = ("fp32_activity", "fp16_activity", "tensor_activity")
MOST_ROWS, LARGER_BATCH = 8, 64  # of the figure


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """The traced trainings on one device at the usual learning rate, large images first.

    `network` names a network with its images, `configuration` its batch too. Trials that differ in how many steps were
    traced, or after how many, only test the sample: those asked for as most are stay.
    """
    rows = frame[(frame["workload"] == "train") & (frame["traced_iterations"] > 0) & (frame["devices"] == 1)]
    rows = rows[rows["learning_rate"] == Trial().learning_rate]
    for asked in ("traced_iterations", "steps_before"):
        rows = rows[rows[asked].isin(rows[asked].mode()[:1])]
    names = [f"{phrase('model', model)}, {px} px" for model, px in zip(rows["model"], rows["image_px"], strict=True)]
    batches = [phrase("batch", batch) for batch in rows["batch"]]
    both = [f"{name}, {batch}" for name, batch in zip(names, batches, strict=True)]
    return rows.assign(network=names, configuration=both).sort_values("image_px", ascending=False, kind="stable")


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """At most eight configurations of `trainings` for a figure: of each network that was optimised, three.

    They are its baseline and its fastest mode at the smallest batch, and its baseline at the largest batch up to 64.
    Without optimised modes every network is shown.
    """
    several = rows.groupby("network")["mode"].transform("nunique") > 1
    shown = rows[several] if several.any() else rows
    keys = ["network", "batch", "mode"]
    means = shown.groupby(keys, sort=False)["step_s"].mean().reset_index()
    is_baseline, batch = means["mode"] == "baseline", means["batch"]
    is_smallest = batch == batch.groupby(means["network"]).transform("min")
    is_larger = batch == batch.where(batch <= LARGER_BATCH).groupby(means["network"]).transform("max")
    is_fastest = means["step_s"] == means.groupby(["network", "batch"])["step_s"].transform("min")
    kept = means[(is_baseline & (is_smallest | is_larger)) | (is_smallest & is_fastest)]
    return shown.merge(kept[keys].head(MOST_ROWS), on=keys)


def parts(rows: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """The time of a timed step by `part`, in `step_s`: a row per row of results and part. They add up to the step.

    `kernels` are those of `Results.kernels`. Kernels that ran at the same time share that time by their durations.
    """
    part_of = {kind: part for part, kinds in PARTS.items() for kind in kinds}
    named = kernels.assign(part=kernels["kernel_class"].map(part_of).fillna(OTHER))
    seconds = named.groupby(["record", "part"])["seconds"].sum().unstack(fill_value=0.0)
    seconds = seconds.reindex(columns=[*PARTS, OTHER], fill_value=0.0).astype(float)
    shares = seconds.div(seconds.sum(axis=1), axis=0).reindex(rows["record"]).set_axis(rows.index)
    busy, waiting = rows["compute_utilisation"].clip(upper=1), rows["waiting_share"]
    of_step = shares.mul(busy, axis=0).assign(**{WAITING: waiting})
    of_step[OTHER] += 1 - busy - waiting
    return pd.concat([rows.assign(part=part, step_s=rows["step_s"] * of_step[part]) for part in of_step])


def bounds(rows: pd.DataFrame, by: Sequence[str], peak_flop_per_s: float = float("nan")) -> pd.DataFrame:
    """What bounds a step, per group of `by`: `bound_by`, and the share of the kernels' time of the `busiest` unit.

    launch-bound: the GPU waits for launches for 20 % of the step or more; on a CPU (overhead-bound) so much lies
    between operators. Else memory-bound or compute-bound: DRAM or a pipe is active for 60 % of the kernels' time or
    more. Where none is, there is no single bottleneck. inconclusive: the interval of the waiting holds 20 %.

    Where units are not counted, an FP32 step that reaches 60 % of the roofline while kernels run is bound by what sets
    the roofline, and any other is not determined. `peak_flop_per_s` is what the device was measured to reach in FP32.
    """
    keys = list(by)
    waits = estimate(rows, "waiting_share", keys)
    of_group = rows.groupby(keys, sort=False)
    means = of_group[["compute_utilisation", "roofline_fraction", "flop_per_s", "dram_activity", *UNITS]].mean()
    found = waits.set_index(keys).join(means).join(of_group[["device", "precision"]].first())
    busy = found["compute_utilisation"].clip(upper=1)
    found["memory"], found["compute"] = found["dram_activity"] / busy, found[list(UNITS)].max(axis=1) / busy
    found["busiest"] = found[["memory", "compute"]].max(axis=1, skipna=False)
    found["near_roof"] = found["roofline_fraction"].where(found["precision"] == "fp32") / busy
    found["arithmetic"] = found["flop_per_s"] / peak_flop_per_s / busy
    found["bound_by"] = [_bound_by(row) for row in found.to_dict("records")]
    return found[["bound_by", "busiest"]].reset_index()


def _bound_by(row: Mapping[str, Any]) -> str:
    """The word for one configuration; a comparison with NaN is False."""
    if row["low"] < WAITS <= row["high"]:
        return INCONCLUSIVE
    if row["value"] >= WAITS:
        return LAUNCH if row["device"] == "cuda" else OVERHEAD
    if pd.notna(row["busiest"]):
        if row["busiest"] < NEAR_PEAK:
            return NO_UNIT
        return MEMORY if row["memory"] > row["compute"] else COMPUTE
    if not row["near_roof"] >= NEAR_PEAK:
        return UNKNOWN
    return COMPUTE if row["arithmetic"] >= row["near_roof"] * (1 - ROUNDING) else MEMORY
