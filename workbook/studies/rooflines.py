"""Rooflines as tables: predicted and measured bounds on images/s, and the peaks behind them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workbook.hardware.profile import Profile
from workbook.results import estimate
from workbook.results.roofline import bound, nominal_of, planned_work
from workbook.trials.trial import OF_NETWORKS, Trial
from workbook.words import mode_name

_ASKED = ["mode", "precision", "model", "image_px", "batch"]


def predicted(profile: Profile, trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the bound on images/s from nominal peaks: `value` and `limited_by`, beside fields of the trial.

    These are `mode`, `precision`, `model`, `image_px`, `batch`. Trials whose precision has no nominal peak are left
    out: memory alone would bound them far too high.
    """
    rows = []
    for trial in trials:
        ceilings = nominal_of(profile, trial)
        limit = bound(planned_work(trial), ceilings) if trial.workload in OF_NETWORKS and ceilings.flop_per_s else None
        if limit and not trial.epochs:
            asked = {name: getattr(trial, name) for name in _ASKED[1:]} | {"mode": mode_name(trial)}
            rows.append({**asked, "value": limit.images_per_s, "limited_by": limit.limited_by})
    return pd.DataFrame(rows, columns=[*_ASKED, "value", "limited_by"]).drop_duplicates()


def measured(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the bounds on images/s from this machine's measured peaks, per group of `by`: `value`, `label`.

    "roofline" is the bound by FP32 arithmetic and memory, and "launch roof" that by the launch rate: a host that only
    launches the step's kernels. `frame` is a table of results. Rows of another precision have no bound, and a launch
    roof needs an eager loop with a trace.
    """
    rows = frame[frame["precision"] == "fp32"]
    rate = rows["images_per_s"]
    bounds = {"roofline": rate / rows["roofline_fraction"]}
    if (launched := rate * rows["launch_roof_flop_per_s"] / rows["flop_per_s"]).notna().any():
        bounds["launch roof"] = launched
    parts = [estimate(rows.assign(bound=bound), "bound", by).assign(label=name) for name, bound in bounds.items()]
    return pd.concat(parts, ignore_index=True)


def peaks(frame: pd.DataFrame, profile: Profile) -> pd.DataFrame:
    """Return the peaks behind a roofline: `peak`, `measured` here, and the vendor's `nominal` (NaN if unknown)."""
    vendor = nominal_of(profile, Trial(device=profile.device.kind))
    kinds = [
        ("matmul", "flop_per_s", "FP32 matrix product, TFLOP/s", 1e-12, vendor.flop_per_s),
        ("memory_copy", "bytes_per_s", "memory copy, GB/s", 1e-9, vendor.bytes_per_s),
    ]
    if (frame["workload"] == "launch_rate").any():  # older records have none
        kinds.append(("launch_rate", "launches_per_s", "launch rate, thousand launches/s", 1e-3, None))
    rows = [
        {"peak": name, "measured": scale * frame.loc[frame["workload"] == workload, metric].mean()}
        | {"nominal": float("nan") if stated is None else scale * stated}
        for workload, metric, name, scale, stated in kinds
    ]
    return pd.DataFrame(rows)
