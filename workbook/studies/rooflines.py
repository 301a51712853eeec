"""Rooflines as tables: predicted and measured bounds on images/s, and the peaks behind them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from workbook.hardware.profile import Profile
from workbook.results import estimate
from workbook.results.roofline import bound, nominal_of, planned_work
from workbook.trials.trial import OF_NETWORKS, Trial
from workbook.words import in_order, label, mode_name

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

    "FP32 roofline" is the bound by FP32 arithmetic and memory. `frame` is a table of results; rows of another precision
    have no bound here.
    """
    rows = frame[frame["precision"] == "fp32"]
    bounds = rows["images_per_s"] / rows["roofline_fraction"]
    return estimate(rows.assign(bound=bounds), "bound", by).assign(label="FP32 roofline")


def exceeded(frame: pd.DataFrame, by: Sequence[str]) -> str:
    """Return a sentence for a caption if a configuration exceeds its roofline; else an empty text.

    >>> shares = pd.DataFrame({"model": ["vgg16", "resnet50"], "roofline_fraction": [1.17, 0.2]})
    >>> exceeded(shares, ["model"]), exceeded(shares.tail(1), ["model"])
    (" A convolution can exceed a matrix product's rate (Winograd, FFT).", '')
    """
    shares = frame.groupby(list(by), observed=True)["roofline_fraction"].mean()
    return " A convolution can exceed a matrix product's rate (Winograd, FFT)." if (shares > 1).any() else ""


def peaks(frame: pd.DataFrame, profile: Profile) -> pd.DataFrame:
    """Return the peaks behind a roofline: `peak`, `measured` here, and the vendor's `nominal` (NaN if unknown)."""
    kind, rows = profile.device.kind, []
    products = frame.query("workload == 'matmul'").dropna(subset=["flop_per_s"])
    for precision in in_order(products["precision"], "precision"):
        vendor = nominal_of(profile, Trial(device=kind, precision=precision)).flop_per_s
        measured = products.loc[products["precision"] == precision, "flop_per_s"].mean()
        name = f"{label('precision', precision)} matrix product, {'TOP' if precision == 'int8' else 'TFLOP'}/s"
        rows.append((name, 1e-12, measured, vendor))
    for workload, metric, name, scale, vendor in (
        ("memory_copy", "bytes_per_s", "memory copy, GB/s", 1e-9, nominal_of(profile, Trial(device=kind)).bytes_per_s),
        ("launch_rate", "launches_per_s", "launch rate, thousand launches/s", 1e-3, None),
    ):
        if (chosen := frame["workload"] == workload).any():  # older records have no launch rate
            rows.append((name, scale, frame.loc[chosen, metric].mean(), vendor))
    nan = float("nan")
    scaled = [(name, scale * value, nan if vendor is None else scale * vendor) for name, scale, value, vendor in rows]
    return pd.DataFrame(scaled, columns=["peak", "measured", "nominal"])
