"""How the laws do on devices that were left out: every error, and how often the interval contained the measured time.

Each device of the published tables is left out in turn. Exponents come from all other devices of all tables. The
interval comes from their own errors, each of them left out in turn once more. So nothing of the device that is
predicted enters its prediction or its interval.

Until 27 November 2026 each table had exponents of its own. The first table of errors showed that three devices of one
source do not determine two exponents (median error 31 % for timm), so the sources were joined after it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import combinations, permutations

import numpy as np
import pandas as pd

from workbook.hardware.profile import Profile, load_profile
from workbook.prediction.laws import COVERED, Rates, exponents, half_width, rates_of, within_chip, work_of
from workbook.prediction.published import PublishedSet, load_published
from workbook.registry import find_study
from workbook.results import Results, load
from workbook.results.load import profiles_with_records

TRACES = "profile"  # the study with long traces
CASES = ["table", "workload", "device", "precision", "measured", "predicted"]
NEWER, OTHER = "newer generation", "other chip"
RESAMPLES, SEED = 2000, 1


def left_out(tables: Iterable[PublishedSet] | None = None) -> pd.DataFrame:
    """Return a row per case: `device` was left out, `measured` and `predicted` seconds, `low`, `high`, `jump`.

    `jump` is "newer generation" if the device was launched after all others, else "other chip".
    """
    return _published_cases().copy() if tables is None else _cases(times_of(tables))


@cache
def _published_cases() -> pd.DataFrame:
    return _cases(published_times())


def _cases(times: pd.DataFrame) -> pd.DataFrame:
    parts, errors = [], errors_without(times)
    for device in times["device"].unique():
        known, target = times[times["device"] != device], times[times["device"] == device]
        width = half_width(errors[device])
        jump = NEWER if target["year"].iloc[0] > known["year"].max() else OTHER
        parts.append(predictions(known, target).assign(jump=jump, width=width))
    return ended(pd.concat(parts, ignore_index=True))


def ended(cases: pd.DataFrame) -> pd.DataFrame:
    """Return cases of some `width` with the ends of their intervals, `low` and `high`, and whether they `covered`."""
    ends = {name: cases["predicted"] * np.exp(sign * cases["width"]) for name, sign in (("low", -1), ("high", 1))}
    return cases.assign(**ends, covered=np.log(cases["measured"] / cases["predicted"]).abs() <= cases["width"])


@cache
def published_times() -> pd.DataFrame:
    """Return `times_of` all published tables, read once: do not change it."""
    return times_of(load_published())


def times_of(tables: Iterable[PublishedSet]) -> pd.DataFrame:
    """Return the times of published tables on devices whose peaks are known."""
    frames = [table.frame().dropna(subset=["flop_per_s", "bytes_per_s"]) for table in tables]
    return pd.concat(frames, ignore_index=True)


def errors_without(times: pd.DataFrame) -> dict[str, list[float]]:
    """Return for each device the errors of all others without it: logarithms of predicted over measured seconds.

    Each of the others is left out in turn, and two devices that are left out together have the same exponents.
    """
    devices = times["device"].unique()
    errors: dict[str, list[float]] = {device: [] for device in devices}
    for pair in combinations(devices, 2) if len(devices) > 2 else ():
        is_target = times["device"].isin(pair)
        cases = predictions(times[~is_target], times[is_target])
        logs = np.log(cases["predicted"] / cases["measured"])
        for device in pair:
            errors[device] += map(float, logs[cases["device"] != device])
    return errors


def predictions(known: pd.DataFrame, target: pd.DataFrame) -> pd.DataFrame:
    """Return the cases of a target that some known device has measured too: `measured` and `predicted` seconds."""
    fitted, keys = exponents(known), ["table", "workload"]
    work = work_of(known, fitted).groupby([known[key] for key in keys]).mean()
    cases = target.join(work.rename("work"), on=keys).dropna(subset=["work"])
    predicted = cases["seconds"] * np.exp(cases["work"] - work_of(cases, fitted))
    return cases.rename(columns={"seconds": "measured"}).assign(predicted=predicted)[CASES]


def left_out_within_chips() -> pd.DataFrame:
    """Return a row per traced configuration that two devices of one chip recorded, each predicted from the other.

    The columns are those of `predictions`, with `source`. `measured` and `predicted` are seconds of a step's kernels,
    means over records. Nothing is left out of `within_chip`, which has no fitted number but its threshold.
    """
    names, rows = profiles_with_records([find_study(TRACES).id]), []
    kernels = {name: _kernels(name) for name in names}
    for source, target in permutations(map(load_profile, names), 2):
        if not is_same_chip(source, target) or source.device.count != 1 or target.device.count != 1:
            continue
        (here, frame), (there, _) = kernels[source.name], kernels[target.name]
        for key in here.keys() & there.keys():
            precision = frame[key]
            rates = [rates_of_profile(profile, precision) for profile in (source, target)]
            if rates[0] and rates[1]:
                measured = float(there[key]["seconds"].sum())
                made = within_chip(here[key].reset_index(), rates[0], rates[1])
                rows.append((TRACES, key, target.name, precision, measured, made, source.name))
    return pd.DataFrame(rows, columns=[*CASES, "source"])


def _kernels(profile: str) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """Return a profile's kernels by class in long traces and the precision, by configuration; means over records."""
    results = load(profile, TRACES)
    results = Results([records for records in results.selected if not records.is_small])
    runs = results.frame()[["record", "key_hash", "device", "devices", "precision"]]
    kernels = results.kernels()[["record", "kernel_class", "seconds", "count"]]
    kernels = kernels.merge(runs[(runs["device"] == "cuda") & (runs["devices"] == 1)], on="record")
    means = kernels.groupby(["key_hash", "kernel_class"])[["seconds", "count"]].mean()
    precisions = kernels.groupby("key_hash")["precision"].first()
    return {key: part.droplevel(0) for key, part in means.groupby(level=0)}, precisions.to_dict()


def is_same_chip(one: Profile, other: Profile) -> bool:
    """Return whether two devices have the same chip: equal compute capability and number of multiprocessors."""
    counts = [profile.device.multiprocessors for profile in (one, other)]
    same = one.device.compute_capability == other.device.compute_capability
    return bool(same and counts[0] and counts[1] and counts[0].value == counts[1].value)


def rates_of_profile(profile: Profile, precision: str) -> Rates | None:
    """Return the nominal peaks of a profile in a precision; None if it lacks one."""
    peaks, memory = profile.peaks.flop_per_s, profile.peaks.memory_bytes_per_s
    return rates_of({name: peak.value for name, peak in peaks.items()}, memory.value if memory else None, precision)


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
