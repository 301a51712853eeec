"""The study of a training step: its trials, the parts of a step, and what bounds it.

A profiler does not slow a GPU's kernels, only the host that launches them. So the duration of kernels comes from the
trace, and the duration of the step from its timing. On a CPU the profiler slows the operators too, so parts are shares
of the traced step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from labkit.models import MODELS
from workbook.results import Results, estimate
from workbook.results.columns import WHAT_RAN
from workbook.show.frames import phrases
from workbook.studies import free_speed
from workbook.studies.planner import Planner, Sweep
from workbook.studies.values import value_of
from workbook.trials import recipes
from workbook.trials.trial import ASKED_AFTER, Trial
from workbook.words import STRICT

# Classes of kernels per part of a figure. The update counts as element-wise, like its kernels: in a captured step they
# cannot be told from other element-wise kernels. All other classes are in the fifth part, `OTHER`.
PARTS = {
    "convolution": ("convolution",),
    "matrix product": ("matrix_product",),
    "normalisation, pooling": ("batch_norm", "layer_norm", "pooling"),
    "element-wise, layout": ("element_wise", "reduction", "layout", "loss", "optimiser"),
}
OTHER = "copies, other"
# Kind of device -> its waiting. On a CPU, it is Python and the framework between operators.
WAITING = {"cuda": "waiting for kernel launches", "cpu": "between operators"}
ALGORITHMS = {
    "implicit_gemm": "implicit GEMM",
    "winograd": "Winograd",
    "fft": "FFT",
    "direct": "direct",
    "tensor_core": "tensor cores",
    "helper": "helpers",
    "library": "the library's own",
}
WAITS = 0.2  # of a step: faster kernels do not speed up a GPU that waits so long for launches
NEAR_PEAK = 0.6  # of the kernels' time: so busy a unit bounds them (Nsight Compute, Kernel Profiling Guide)
COMPUTE, MEMORY, NO_UNIT = "compute-bound", "memory-bound", "no single bottleneck"
LAUNCH, OVERHEAD = "launch-bound", "overhead-bound"  # of a GPU, of a CPU
INCONCLUSIVE, UNKNOWN = "inconclusive", "not determined"
PIPES = ("fp32_activity", "fp16_activity", "tensor_activity")
MOST_ROWS, LARGER_BATCH = 8, 64  # of the figure


def trainings(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the traced trainings on one device at the default learning rate, large images first.

    `network` names a network with its images, `configuration` also its batch. Trials that only test the sample differ
    in `traced_iterations` or `steps_before`: only the most frequent value of each field stays.
    """
    rows = frame[(frame["workload"] == "train") & (frame["traced_iterations"] > 0) & (frame["devices"] == 1)]
    rows = rows[rows["learning_rate"] == Trial().learning_rate]
    for field in ("traced_iterations", "steps_before"):
        rows = rows[rows[field].isin(rows[field].mode()[:1])]
    named = [("network", ["model", "image_px"]), ("configuration", ["model", "image_px", "batch"])]
    rows = rows.assign(**{name: phrases(rows, columns) for name, columns in named})
    return rows.sort_values("image_px", ascending=False, kind="stable")


def chosen(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at most eight configurations of `trainings` for a figure: three per network that was optimised.

    They are its baseline and its fastest mode at the smallest batch, and its baseline at the largest batch up to 64,
    which is left out first. Without optimised modes every network is shown.
    """
    several = rows.groupby("network")["mode"].transform("nunique") > 1
    shown = rows[several] if several.any() else rows
    keys = ["network", "batch", "mode"]
    means = shown.groupby(keys, sort=False)["step_s"].mean().reset_index()
    is_baseline, batch = means["mode"] == STRICT, means["batch"]
    is_smallest = batch == batch.groupby(means["network"]).transform("min")
    is_larger = batch == batch.where(batch <= LARGER_BATCH).groupby(means["network"]).transform("max")
    is_fastest = means["step_s"] == means.groupby(["network", "batch"])["step_s"].transform("min")
    kept = means[is_smallest & (is_baseline | is_fastest)], means[is_larger & is_baseline & ~is_smallest]
    return shown.merge(pd.concat(kept)[keys].head(MOST_ROWS), on=keys)


def parts(rows: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the time of a timed step by `part`, in `step_s`: a row per row of results and part. Parts add up to it.

    `kernels` is `Results.kernels()`. Kernels that ran at the same time share that time by their durations.
    """
    shares = shares_of_kernels(kernels).reindex(rows["record"]).set_axis(rows.index)
    busy, waiting = rows["compute_utilisation"].clip(upper=1), rows["waiting_share"]
    of_step = shares.mul(busy, axis=0)
    of_step[OTHER] += (1 - busy - waiting).fillna(0)
    pieces = [rows.assign(part=part, step_s=rows["step_s"] * of_step[part]) for part in of_step]
    return pd.concat([*pieces, rows.assign(part=rows["device"].map(WAITING), step_s=rows["step_s"] * waiting)])


def shares_of_kernels(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return each part's share of the kernels' time: a row per `record`, a column per part.

    >>> kernels = pd.DataFrame({"record": "r", "kernel_class": ["convolution", "loader"], "seconds": [3.0, 1.0]})
    >>> shares_of_kernels(kernels).loc["r", ["convolution", "copies, other"]].tolist()
    [0.75, 0.25]
    """
    part_of = {kind: part for part, kinds in PARTS.items() for kind in kinds}
    named = kernels.assign(part=kernels["kernel_class"].map(part_of).fillna(OTHER))
    seconds = named.groupby(["record", "part"])["seconds"].sum().unstack(fill_value=0.0)
    seconds = seconds.reindex(columns=[*PARTS, OTHER], fill_value=0.0).astype(float)
    return seconds.div(seconds.sum(axis=1), axis=0)


def work(results: Results) -> pd.DataFrame:
    """Return the time of a step's work at the measured FP32 peaks: `record`, `arithmetic_s`, `traffic_s`.

    Arithmetic is that of direct convolutions; traffic are the bytes that no cache saves (weights, images). NaN in other
    precisions.
    """
    frame = results.frame()
    weights, image = (
        frame["record"].map(results.facts(name).set_index("record")["value"].astype(float))
        for name in ("weight_traffic_bytes_per_step", "image_bytes")
    )
    flop_per_s = value_of(estimate(frame.query("workload == 'matmul' and precision == 'fp32'"), "flop_per_s"))
    bytes_per_s = value_of(estimate(frame[frame["workload"] == "memory_copy"], "bytes_per_s"))
    is_fp32, traffic = frame["precision"] == "fp32", weights + image * frame["batch"].astype(float)
    return pd.DataFrame(
        {
            "record": frame["record"],
            "arithmetic_s": (frame["flop_per_step"] / flop_per_s).where(is_fp32),
            "traffic_s": (traffic / bytes_per_s).where(is_fp32),
        }
    )


def bounds(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return what bounds a step per group of `by`: `bound_by`, and the `busiest` unit's share of the kernels' time.

    launch-bound: the GPU waits for launches for at least 20 % of the step. overhead-bound: on a CPU at least 20 % lie
    between operators. Else memory-bound or compute-bound: DRAM or a pipe is active for at least 60 % of the kernels'
    time. If none is, there is no single bottleneck. inconclusive: the interval of the waiting contains 20 %.

    Without counters of units, `work` (merged into `rows`) decides: a step is bound by the larger of arithmetic and
    traffic if both, one after the other, take 60 % of the kernels' time at the measured peaks. Any other step is not
    determined. `bound_by` is None without a trace.
    """
    keys = list(by)
    of_group = rows.assign(busy=rows["compute_utilisation"].clip(upper=1)).groupby(keys, sort=False)
    mean = of_group[["busy", "step_s", "arithmetic_s", "traffic_s", "dram_activity", *PIPES]].mean()
    waits = estimate(rows, "waiting_share", keys).set_index(keys).reindex(mean.index)
    memory, compute = mean["dram_activity"] / mean["busy"], mean[list(PIPES)].max(axis=1) / mean["busy"]
    busiest = pd.concat([memory, compute], axis=1).max(axis=1, skipna=False).clip(upper=1)
    at_peak = (mean["arithmetic_s"] + mean["traffic_s"]) / (mean["step_s"] * mean["busy"])
    rule = [
        (mean["busy"].isna(), None),
        (waits["value"].isna(), UNKNOWN),
        ((waits["low"] < WAITS) & (waits["high"] >= WAITS), INCONCLUSIVE),
        ((waits["value"] >= WAITS) & (of_group["device"].first() == "cuda"), LAUNCH),
        (waits["value"] >= WAITS, OVERHEAD),
        (busiest < NEAR_PEAK, NO_UNIT),
        (busiest.notna() & (memory > compute), MEMORY),
        (busiest.notna(), COMPUTE),
        ((at_peak >= NEAR_PEAK) & (mean["arithmetic_s"] >= mean["traffic_s"]), COMPUTE),
        (at_peak >= NEAR_PEAK, MEMORY),
    ]
    bound_by = pd.Series(UNKNOWN, index=mean.index, dtype=object)
    for holds, word in reversed(rule):  # the first that holds decides
        bound_by = bound_by.mask(holds, word)
    return mean.assign(bound_by=bound_by, busiest=busiest)[["bound_by", "busiest"]].reset_index()


def samples(frame: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return each part's `share` of the kernels' time, from 0 to 1, in a short and in a long trace of a configuration.

    The table has a row per run and `part`. `sample` is "few" for the trials with the fewest traced steps of their
    configuration, and "many" for those with the most. A configuration with a single number of traced steps has no row.
    If the shares of both samples agree, a few traced steps represent a whole run.
    """
    traced = frame[(frame["workload"] == "train") & (frame["traced_iterations"] > 0)]
    same = [name for name in WHAT_RAN if name not in ASKED_AFTER]
    steps = traced.groupby(same, dropna=False)["traced_iterations"]
    few, many = (traced["traced_iterations"] == steps.transform(end) for end in ("min", "max"))
    ends = traced[few != many].assign(sample=few.map({True: "few", False: "many"}))
    shares = shares_of_kernels(kernels).rename_axis("part", axis=1).stack().rename("share").reset_index()
    return ends.merge(shares, on="record")


# ---- the trials, from the sizes of the sweep -------------------------------------------------------------------------

SMALL_PX = 32


def traced(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the timed trainings of the study, each once, with the sweep's number of steps traced afterwards.

    Other studies call it with this study's sweep, to know which of their configurations it traces.
    """
    trials = plain(lab, sweep) + tuned(lab, sweep) + rated(lab, sweep) + shared(lab, sweep)
    return [replace(trial, traced_iterations=sweep["traced_iterations"]) for trial in dict.fromkeys(trials)]


def plain(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the baseline over batches: networks at their native size, and at 32 px.

    Its loader copies the numbers of each batch's samples to the device; other loaders would show no copy in the trace.
    """
    trials = _at_own_size(lab, sweep["large"], batch=sweep["large_batch"])
    trials += _at_own_size(lab, sweep["larger"], batch=sweep["larger_batch"])
    trials += lab.trials(model=sweep["small"], image_px=SMALL_PX, batch=sweep["small_batch"])
    return trials + lab.trials(model=sweep["bound"], image_px=SMALL_PX, batch=sweep["bound_batch"])


def tuned(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the same networks in optimised modes, which remove the gaps between kernels."""
    modes = recipes.tuned(lab.profile.device.kind)
    trials: list[Trial] = []
    for name in sweep["tuned_engines"]:
        trials += _at_own_size(lab, sweep["tuned"], batch=sweep["tuned_batch"], **modes[name])
        small = {"image_px": SMALL_PX, "batch": sweep["tuned_small_batch"]}
        trials += lab.trials(model=sweep["tuned_small"], **small, **modes[name])
    compiled = {"batch": sweep["compiled_batch"], **modes[sweep["compiled_engine"]]}
    return trials + _at_own_size(lab, sweep["compiled"], **compiled)


def rated(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the baseline at other learning rates: a claim says that they make no difference to the speed."""
    rates = {"learning_rate": sweep["learning_rates"], "batch": sweep["rated_batch"]}
    return _at_own_size(lab, sweep["rated"], **rates)


def shared(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return DataParallel on all GPUs, if there are several: one process copies the weights and splits each batch.

    Larger scales include fewer GPUs too. A batch that the GPUs cannot share evenly is left out.
    """
    counts = [n for n in lab.device_counts if n > 1] if lab.profile.device.kind == "cuda" else []
    trials: list[Trial] = []
    for devices in counts if sweep["shared_by_fewer"] else counts[-1:]:
        batches = [batch for batch in sweep["shared_batch"] if batch % devices == 0]
        way = {"devices": devices, "parallel": "one_process", "scaling": "strong"}
        trials += _at_own_size(lab, sweep["shared"], batch=batches, **way)
    return trials


def sampled(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return trials that differ only in how many of their steps are traced: a claim compares few steps with many."""
    about = {"image_px": SMALL_PX, "batch": sweep["sampled_batch"], "steps_before": sweep["steps_before"]}
    return lab.trials(model=sweep["sampled"], **about, traced_iterations=sweep["sampled_iterations"])


def free(lab: Planner, sweep: Sweep) -> list[Trial]:
    """Return the baseline of one network, and each single change to it that leaves the model as it is.

    They are trained at 32 px and at a larger size, where the host has less influence. Without a change for a size
    there is no baseline either.
    """
    small = {"image_px": SMALL_PX, "batch": sweep["free_batch"]}
    large = {"image_px": sweep["free_large_px"], "batch": sweep["free_large_batch"]}
    trials: list[Trial] = []
    for size, names in ((small, sweep["free_changes"]), (large, sweep["free_large_changes"])):
        loops = [recipes.PLAIN, *map(free_speed.one_change, names)] if names else []
        trials += [trial for loop in loops for trial in lab.trials(model=sweep["free_model"], **size, **loop)]
    return trials


def _at_own_size(lab: Planner, models: Iterable[str], **about: Any) -> list[Trial]:
    return [trial for name in models for trial in lab.trials(model=name, image_px=MODELS[name].native_px, **about)]
