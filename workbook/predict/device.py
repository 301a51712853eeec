"""A prediction for recorded configurations on a device without records, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from workbook.hardware.profile import Profile, load_profile
from workbook.predict import laws
from workbook.predict.guarantee import errors_of, is_same_chip, left_out_within_chips, rates_of_profile, times_of
from workbook.predict.published import load_published
from workbook.results import Results
from workbook.words import AS_INSTALLED, CAREFUL, STRICT

SAME_CHIP, OTHER_CHIP = "kernel classes, same chip", "two exponents, other chip"
EAGER = (STRICT, AS_INSTALLED, CAREFUL)
COLUMNS = ["record", "configuration_key", "to", "basis", "device_s", "low_s", "high_s", "reason"]
ROOM = 0.95  # of a device's memory that a network may fill


def predict(results: Results, to: str) -> pd.DataFrame:
    """Return a row per traced record of one device: the seconds of its step's kernels on the profile `to`.

    `device_s` has an 80 % interval from `low_s` to `high_s`, and `basis` says which law gave it. `reason` says why a
    configuration has no prediction: no trace, several devices, a loader that limits it, a precision without a peak, a
    memory that is too small, or a generation without any data. Raise UserError for an unknown profile.

    >>> import workbook
    >>> workbook.predict(workbook.load("h100", "training"), to="h200")  # doctest: +SKIP
    """
    target, rows = load_profile(to), []
    kernels = results.kernels()
    by_record = dict(kernels.groupby("record")) if len(kernels) else {}
    for records in results.selected:
        source = records.profile
        frame = Results([records]).frame()
        for case in frame[frame["status"] == "ok"].to_dict("records"):
            reason = refused(case, source, target, by_record.get(case["record"]))
            made = (
                ("", math.nan, math.nan, math.nan) if reason else _of(case, source, target, by_record[case["record"]])
            )
            rows.append((case["record"], case["key_hash"], to, *made, reason))
    return pd.DataFrame(rows, columns=COLUMNS)


def refused(case: Mapping[str, object], source: Profile, target: Profile, kernels: pd.DataFrame | None) -> str:
    """Return why a configuration cannot be predicted for a target; an empty text if it can."""
    precision, held = str(case["precision"]), case.get("memory_bytes")
    memory = target.device.memory_bytes
    if source.device.kind != "cuda" or target.device.kind != "cuda":
        return "only GPUs are predicted"
    if case["devices"] != 1 or case.get("reader", "own") != "own":
        return "several devices or a loader limit it"
    if kernels is None or not len(kernels):
        return "it has no trace with seconds by class of kernels"
    if not (rates_of_profile(target, precision) and rates_of_profile(source, precision)):
        return f"{target.title if not rates_of_profile(target, precision) else source.title} has no peak of {precision}"
    if memory and isinstance(held, float) and held > ROOM * memory.value:
        return f"its memory of {held / 2**30:.0f} GiB does not fit into {target.title}"
    if not is_same_chip(source, target) and _generation(target) not in _generations():
        return f"no public or recorded data are of the generation of {target.title}"
    return ""


def _of(case: Mapping[str, object], source: Profile, target: Profile, kernels: pd.DataFrame) -> tuple[object, ...]:
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
    return basis, seconds, seconds * math.exp(-width), seconds * math.exp(width)


def _generation(profile: Profile) -> str:
    return (profile.device.compute_capability or "").partition(".")[0]


def _generations() -> set[str]:
    profiles = set(times_of(load_published())["profile"].dropna())
    return {_generation(load_profile(name)) for name in profiles}
