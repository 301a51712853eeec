"""Three ways to say how busy a device was, side by side, why they differ by definition, and how much work there was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing, number, percent, quantity
from labkit.analysis.observations import label, readings
from labkit.analysis.speed import title
from labkit.analysis.studies import known_rates
from labkit.analysis.studies.profile import seen
from labkit.analysis.table import Table, Text
from labkit.models import MODELS, count
from labkit.results import roofline
from labkit.results.from_telemetry import why_not
from labkit.results.study_records import StudyRecords as Results
from labkit.traced import Traced
from labkit.trial import Trial

GPM = ("sm_activity", "fp32_activity", "tensor_activity")
LEAST_UNEXPLAINED = 0.001  # of the time
WORTH_KNOWING = 0.02  # of the time: more could bound a step's part
LEAST_SAVED = 0.05  # of the peak: less may be noise of sampling
# What the fact `nsight` may hold beside its reason: shares of the time of the kernels that Nsight Compute looked at.
NSIGHT = {"fp32_activity": "FP32", "tensor_activity": "tensor", "dram_activity": "DRAM"}


def table(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """Busy time of the trace, activities of the counters, and FLOP over peak and elapsed time."""
    known = [trial for trial in trials if results.ok(trial)]
    if not known:
        return Text("No trial gave a result, so there are no counters to compare.")
    names = seen.engine_words(known)
    rows = [_row(results, trial, names[trial]) for trial in known]
    frame = pd.DataFrame(rows, dtype=object)
    seldom = tuple(name for name in frame.columns if name not in ("", "batch", "engine"))
    return Table(
        engines.concise(frame.where(frame.notna(), None), seldom),
        f"How busy the same steps were, by {_sources(results, known)}.{_missing(results, known)} "
        f"{engines.conditions(results, known)}.",
    )


def _row(results: Results, trial: Trial, engine: str) -> dict[str, Any]:
    def shown(name: str) -> str | None:
        found = seen.metric(results, trial, name)
        return percent(found.point) if found else None

    return {
        "": f"{title(trial)}, {trial.image_px} px",
        "batch": trial.batch,
        "engine": engine,
        "any operator (trace)" if trial.device == "cpu" else "any kernel (trace)": shown("compute_utilisation"),
        "any kernel (driver)": shown("utilisation"),
        "SMs active": shown("sm_activity"),
        "warps": shown("occupancy"),
        "FP32 pipes": shown("fp32_activity"),
        "tensor cores": shown("tensor_activity"),
        "FLOP over peak": shown("fp32_utilisation"),
    }


def nsight_of(results: Results, trial: Trial) -> dict[str, Any]:
    """What Nsight Compute said of a trial's kernels, or the reason why it said nothing; {} where it was not asked."""
    found = results.fact(trial, "nsight")
    return found if isinstance(found, dict) else {}


def _sources(results: Results, trials: Sequence[Trial]) -> str:
    """What the columns are."""
    peak, source = roofline.fp32_peak(results, trials[0])
    often = readings(results, trials, "sm_activity")
    told = f" ({quantity(peak, 'flop_per_s')}, {source})" if peak else ""
    if all(trial.device == "cpu" for trial in trials):
        return (
            "the trace (time in any of PyTorch's operators, of the traced time) and by the arithmetic: FLOP of direct "
            f"convolutions over the FP32 peak{told} and the timed time"
        )
    return (
        "the trace (time in which any kernel ran, over the timed step), the driver (the same, but short gaps between "
        "kernels escape its samples), the driver's counters (GPM, GPU performance monitoring"
        f"{f', {often}' if often else ''}; SMs: the share of multiprocessors with at least one warp, averaged over "
        "time; warps: of all that they have room for, those resident; pipes: the share of cycles in which they worked) "
        "and the arithmetic: FLOP of direct "
        "convolutions over the FP32 peak"
        f"{told} and elapsed time, where the trial computes in FP32"
    )


def _missing(results: Results, trials: Sequence[Trial]) -> str:
    """Which of the three are not there, with the reason."""
    if all(trial.device == "cpu" for trial in trials):
        return " the driver's counters (GPM, GPU performance monitoring) and Nsight Compute (ncu) count GPUs only."
    said = []
    lacking = [name for name in GPM if not any(seen.metric(results, trial, name) for trial in trials)]
    if lacking:
        said.append(f"{listing([label(name) for name in lacking])}: {why_not(results, lacking[0])}")
    told = [nsight_of(results, trial) for trial in trials]
    reasons = sorted({str(one["reason"]) for one in told if "reason" in one})
    if reasons or not any("kernels" in one for one in told):
        said.append(f"Nsight Compute: {'; '.join(reasons) or 'it was not asked'}")
    return _not_here(said)


def _not_here(said: Sequence[str]) -> str:
    return f" Not here: {'; '.join(said)}." if said else ""


def difference(results: Results, trials: Sequence[Trial]) -> Text:
    """Why busy time and SM activity differ by definition, with the trials where they differ least and most."""
    pairs = [
        (busy.point, active.point, trial)
        for trial in trials
        if (busy := seen.metric(results, trial, "compute_utilisation"))
        and (active := seen.metric(results, trial, "sm_activity"))
    ]
    if not pairs:
        return Text("")
    said = (
        "Time in which any kernel ran counts a kernel that fills one multiprocessor like one that fills all; SM "
        "activity counts how many had a warp. So the second is at most the first, but for the noise of sampling, and "
        "what lies between them is multiprocessors without work while a kernel runs."
    )
    most, least = max(pairs, key=lambda one: one[0] - one[1]), min(pairs, key=lambda one: one[0] - one[1])
    ends = [most] if most is least else [most, least]
    told = [
        f"{which}: {seen.name(trial)} (a kernel ran {percent(busy)} of the time, SMs active {percent(active)})"
        for which, (busy, active, trial) in zip(("Furthest apart", "nearest"), ends, strict=False)
    ]
    above = [seen.name(trial) for busy, active, trial in pairs if active > busy]
    also = (
        f" SM activity exceeds busy time, by sampling: {listing(above)}."
        if above
        else " SM activity nowhere exceeds busy time."
    )
    parts = [f"{said} {'; '.join(told)}.{also}", _saved(results, trials), known_rates.sentence(results)]
    parts.append(_unexplained(results, trials))
    return Text("\n\n".join(part for part in parts if part))


def _unexplained(results: Results, trials: Sequence[Trial]) -> str:
    """Tensor cores that are active in FP32, which uses none: how much, beside what an FP32 matrix product reads."""
    in_fp32 = [trial for trial in trials if trial.precision == "fp32"]
    found = [(one.point, trial) for trial in in_fp32 if (one := seen.metric(results, trial, "tensor_activity"))]
    products = [one for one in results.trials(workload="matmul", precision="fp32", device="cuda") if results.ok(one)]
    largest = max(products, key=lambda one: one.size, default=None)
    product = seen.metric(results, largest, "tensor_activity") if largest else None
    most, trial = max(found, key=lambda pair: pair[0], default=(0.0, None))
    if trial is None or most < LEAST_UNEXPLAINED:
        return ""
    beside = f", and in the FP32 matrix product for {percent(product.point)}" if product else ""
    return (
        f"In FP32, which uses no tensor cores, these are active for up to {percent(most)} of the time "
        f"({seen.name(trial)}){beside}. What runs on them is not known"
        f"{'; it is too little to change what the page says' if most < WORTH_KNOWING else ''}."
    )


def _saved(results: Results, trials: Sequence[Trial]) -> str:
    """Where FLOP over peak exceeds what FP32 pipes did: arithmetic that is counted and was not needed."""
    pairs = [
        (nominal.point, active.point, trial)
        for trial in trials
        if trial.precision == "fp32"
        and (nominal := seen.metric(results, trial, "fp32_utilisation"))
        and (active := seen.metric(results, trial, "fp32_activity"))
    ]
    if not pairs:
        return ""
    counted, done, trial = max(pairs, key=lambda one: one[0] - one[1])
    if counted - done < LEAST_SAVED:
        return ""
    return (
        f"FLOP over peak exceeds the FP32 pipes' share where kernels need less arithmetic than the direct convolutions "
        f"that are counted (Winograd's, FFT's): most in {seen.name(trial)}, {percent(counted)} against {percent(done)}."
    )


def nsight(results: Results, trials: Sequence[Trial]) -> Table | Text:
    """What Nsight Compute counted of single kernels, beside the device's own counters over the whole step."""
    counted = [trial for trial in trials if "kernels" in nsight_of(results, trial) and seen.traces(results, trial)]
    if not counted:
        return Text("")
    return Table(
        pd.DataFrame([_beside_gpm(results, trial) for trial in counted], dtype=object),
        "Nsight Compute (ncu) runs kernels of a step one at a time, each after a pause and without others, and counts "
        "in each: shares of their own time, which differs from what they take in a step. It has a process of its own, "
        "in which cuDNN chooses its algorithms anew, so that kernels may be others than those of the step beside them; "
        f"clocks and caches are left as they are{_no_more_than(results, counted)}. Beside it GPM's share of the timed "
        "step over the part of it in which kernels run (by the noise of few readings it may pass 100 %). ncu is of the "
        "first pass, GPM and the step's kernels are means of passes. "
        f"{engines.conditions(results, counted)}.",
    )


def _no_more_than(results: Results, trials: Sequence[Trial]) -> str:
    """`; it stops after 300 kernels, from the step's beginning`; empty where records do not say."""
    most = [limit for trial in trials if (limit := nsight_of(results, trial).get("most_kernels"))]
    return f"; it stops after {max(most):,} kernels, from the step's beginning" if most else ""


def _beside_gpm(results: Results, trial: Trial) -> dict[str, Any]:
    counted, busy = nsight_of(results, trial), seen.metric(results, trial, "compute_utilisation")
    launched = seen.mean_of(results, trial, _kernels_a_step)
    row: dict[str, Any] = {
        "": f"{title(trial)}, {trial.image_px} px",
        "batch": trial.batch,
        "kernels counted": counted["kernels"],
        "in a step": None if launched is None else round(launched),
        "ms counted": 1e3 * counted["kernel_s"],
        "ms in a step": seen.mean_of(results, trial, lambda trace: 1e3 * trace.kernel_s / trace.steps),
    }
    for name, head in NSIGHT.items():
        of_gpm = seen.metric(results, trial, name)
        row[f"{head} (ncu)"] = percent(counted[name]) if isinstance(counted.get(name), float) else None
        row[f"{head} (GPM)"] = percent(of_gpm.point / busy.point) if of_gpm and busy and busy.point else None
    if longest := counted.get("longest"):
        share = percent(longest[0]["seconds"] / counted["kernel_s"])
        row["longest counted"] = f"{longest[0]['name']}, {share}"
    return row


def _kernels_a_step(trace: Traced) -> float:
    return sum(one.count for one in trace.kernels.values()) / trace.steps


def flop(trials: Sequence[Trial]) -> Table | Text:
    """The arithmetic of a step, forward and back, by network and input over the batch."""
    rows = []
    for setting in dict.fromkeys(seen.setting(trial) for trial in trials):
        mine = sorted((trial for trial in trials if seen.setting(trial) == setting), key=lambda trial: trial.batch)
        one = mine[0]
        if one.model not in MODELS:
            continue
        facts = count(one.model, image_px=one.image_px, classes=one.classes, stem=one.stem, head=one.head)
        back = facts.flop_training - facts.flop_forward
        rows.append(
            {
                "": setting,
                "forward (GFLOP/image)": facts.flop_forward / 1e9,
                "back (GFLOP/image)": back / 1e9,
                "back over forward": f"{number(back / facts.flop_forward)}x",
                "batch": ", ".join(f"{trial.batch:,}" for trial in mine),
                "GFLOP a step": ", ".join(number(facts.flop_training * trial.batch / 1e9) for trial in mine),
            }
        )
    if not rows:
        return Text("There are no trainings of networks, so there is no arithmetic to count.")
    return Table(
        pd.DataFrame(rows, dtype=object),
        "The arithmetic of training, counted from the networks: two FLOP a multiply-add of convolutions and linear "
        "layers, direct convolutions, whatever algorithm the library takes. It is proportional to the batch. The NYU "
        "paper's nvprof counted what kernels did instead, which a faster algorithm makes fewer.",
    )
