"""A prediction for recorded configurations on a device without records, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from workbook.hardware.profile import Profile, load_profile
from workbook.predict import laws
from workbook.predict.guarantee import errors_of, is_same_chip, left_out_within_chips, rates_of_profile, times_of
from workbook.predict.published import load_published
from workbook.results import Results
from workbook.results.columns import WHAT_RAN
from workbook.trials.trial import OF_NETWORKS
from workbook.words import NAN

SAME_CHIP, OTHER_CHIP = "kernel classes, same chip", "two exponents, other chip"
ROOM = 0.95  # of a device's memory that a network may fill
PREDICTED = ["to", "basis", "device_s", "low_s", "high_s"]


def predict(results: Results, to: str) -> pd.DataFrame:
    """Return a row per configuration of one device, with the seconds of its step's kernels on the profile `to`.

    Beside the fields of a trial, `busy_s` are the seconds that its traces show on the device that measured it, means
    over records. `device_s` is predicted, with an 80 % interval from `low_s` to `high_s`; `basis` names the law.
    `reason` says why a configuration has no prediction. A host that launches slowly makes an eager step longer. Raise
    UserError for an unknown profile.

    >>> import workbook
    >>> workbook.predict(workbook.load("h100", "profile"), to="h200")  # doctest: +SKIP
    """
    target, rows = load_profile(to), []
    for records in results.selected:
        of_device = Results([records])
        frame, kernels = of_device.frame(), of_device.kernels()
        runs = frame[(frame["status"] == "ok") & frame["workload"].isin(OF_NETWORKS)]
        traced = kernels[["record", "kernel_class", "seconds", "count"]].merge(
            runs[["record", "key_hash"]], on="record"
        )
        by_key = {
            key: part.groupby("kernel_class", as_index=False)[["seconds", "count"]].mean()
            for key, part in traced.groupby("key_hash")
        }
        for case in runs.drop_duplicates("key_hash").to_dict("records"):
            steps = by_key.get(case["key_hash"], traced.iloc[:0])
            reason = refused(case, records.profile, target, steps)
            made = (to, "", NAN, NAN, NAN) if reason else _of(case, records.profile, target, steps)
            about = {name: case[name] for name in WHAT_RAN} | {"profile": records.profile.name}
            rows.append(
                {
                    **about,
                    "busy_s": steps["seconds"].sum() or NAN,
                    **dict(zip(PREDICTED, made, strict=True)),
                    "reason": reason,
                }
            )
    return pd.DataFrame(rows)


def refused(case: Mapping[Any, Any], source: Profile, target: Profile, kernels: pd.DataFrame) -> str:
    """Return why a configuration cannot be predicted for a target; an empty text if it can."""
    precision, held = str(case["precision"]), case.get("memory_bytes")
    memory = target.device.memory_bytes
    if source.device.kind != "cuda" or target.device.kind != "cuda":
        return "only GPUs are predicted"
    if case["devices"] != 1 or case.get("reader", "own") != "own":
        return "several devices or a loader limit it"
    if not len(kernels):
        return "it has no trace with seconds by class of kernels"
    if not (rates_of_profile(target, precision) and rates_of_profile(source, precision)):
        return f"{target.title if not rates_of_profile(target, precision) else source.title} has no peak of {precision}"
    if memory and isinstance(held, float) and held > ROOM * memory.value:
        return f"its memory of {held / 2**30:.0f} GiB does not fit into {target.title}"
    if not is_same_chip(source, target) and _generation(target) not in _generations():
        return f"no public or recorded data are of the generation of {target.title}"
    return ""


def _of(case: Mapping[Any, Any], source: Profile, target: Profile, kernels: pd.DataFrame) -> tuple[object, ...]:
    precision = str(case["precision"])
    here, there = rates_of_profile(source, precision), rates_of_profile(target, precision)
    assert here and there
    if is_same_chip(source, target):
        seconds, basis = laws.within_chip(kernels, here, there), SAME_CHIP
        others = left_out_within_chips()
        others = others[others["device"] != target.name]
        width = laws.half_width([float(value) for value in np.log(others["predicted"] / others["measured"])])
    else:
        busy = pd.DataFrame([{"seconds": kernels["seconds"].sum(), **here._asdict()}])
        times = times_of(load_published())
        seconds = laws.between_chips(busy, there, laws.exponents(times))
        width, basis = laws.half_width(errors_of(times)), OTHER_CHIP
    return target.name, basis, seconds, seconds * math.exp(-width), seconds * math.exp(width)


def _generation(profile: Profile) -> str:
    return (profile.device.compute_capability or "").partition(".")[0]


def _generations() -> set[str]:
    profiles = set(times_of(load_published())["profile"].dropna())
    return {_generation(load_profile(name)) for name in profiles}
