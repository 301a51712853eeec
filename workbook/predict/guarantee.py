"""How the laws do on devices that were left out: every error, and how often the interval contained the measured time.

Each device of each published table is left out in turn. Exponents come from the table's other devices. The interval
comes from their own errors, each of them left out in turn once more. So nothing of the device that is predicted enters
its prediction or its interval.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from workbook.predict.laws import COVERED, Rates, between_chips, exponents, half_width
from workbook.predict.published import PublishedSet, load_published

NEWER, OTHER = "newer generation", "other chip"
FEWEST_DEVICES = 3  # that remain: one to predict from, two to learn from
RESAMPLES, SEED = 2000, 1


def left_out(tables: Iterable[PublishedSet] | None = None) -> pd.DataFrame:
    """Return a row per case: `device` was left out, `measured` and `predicted` seconds, `low`, `high`, `jump`.

    `jump` is "newer generation" if the device was launched after all others of its table, else "other chip". Tables
    with fewer than four devices are left out, because too little remains.
    """
    published = load_published() if tables is None else tables
    parts = [_of_table(frame) for table in published if (frame := table.frame().dropna())["device"].nunique()]
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def _of_table(times: pd.DataFrame) -> pd.DataFrame:
    devices = list(times["device"].unique())
    if len(devices) <= FEWEST_DEVICES:
        return times.iloc[:0]
    parts = []
    for device in devices:
        known, target = times[times["device"] != device], times[times["device"] == device]
        width = half_width(errors_of(known))
        jump = NEWER if (target["year"].iloc[0] > known["year"]).all() else OTHER
        parts.append(predictions(known, target).assign(jump=jump, width=width))
    cases = pd.concat(parts, ignore_index=True)
    ends = {name: cases["predicted"] * np.exp(sign * cases["width"]) for name, sign in (("low", -1), ("high", 1))}
    return cases.assign(**ends, covered=(cases["measured"] / cases["predicted"]).apply(np.log).abs() <= cases["width"])


def errors_of(times: pd.DataFrame) -> list[float]:
    """Return the logarithms of predicted over measured seconds, each device left out in turn."""
    parts = [
        predictions(times[times["device"] != device], times[times["device"] == device])
        for device in times["device"].unique()
        if times["device"].nunique() > 1
    ]
    cases = pd.concat(parts) if parts else pd.DataFrame({"predicted": [], "measured": []})
    return [float(value) for value in np.log(cases["predicted"] / cases["measured"])]


def predictions(known: pd.DataFrame, target: pd.DataFrame) -> pd.DataFrame:
    """Return the cases of a target that some known device has measured too: `measured` and `predicted` seconds."""
    fitted, rows = exponents(known), []
    for case in target.itertuples():
        same = known[(known["table"] == case.table) & (known["workload"] == case.workload)]
        if len(same):
            predicted = between_chips(same, Rates(case.flop_per_s, case.bytes_per_s), fitted)
            rows.append((case.table, case.workload, case.device, case.precision, case.seconds, predicted))
    return pd.DataFrame(rows, columns=["table", "workload", "device", "precision", "measured", "predicted"])


def coverage(cases: pd.DataFrame, by: str = "jump") -> pd.DataFrame:
    """Return per value of `by`: cases, devices, the median and largest error, and the share covered with its interval.

    `low` and `high` are a 95 % interval over devices, because cases of one device err together: a bootstrap of devices.
    """
    rows = []
    for name, group in cases.groupby(by, sort=False):
        errors = (group["predicted"] / group["measured"] - 1).abs()
        of_device = group.groupby("device")["covered"].agg(["sum", "count"]).to_numpy(dtype=float)
        drawn = np.random.default_rng(SEED).integers(len(of_device), size=(RESAMPLES, len(of_device)))
        sums = of_device[drawn].sum(axis=1)
        low, high = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
        about = (len(group), group["device"].nunique(), errors.median(), errors.max())
        rows.append((name, *about, group["covered"].mean(), low, high))
    columns = [by, "cases", "devices", "median_error", "largest_error", "covered", "low", "high"]
    return pd.DataFrame(rows, columns=columns).assign(promised=COVERED)
