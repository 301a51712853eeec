"""A prediction for recorded configurations on a device without records, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from workbook.hardware.profile import Profile, load_profile
from workbook.predict import laws
from workbook.predict.guarantee import errors_of
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
    if not (_rates(target, precision) and _rates(source, precision)):
        return f"{target.title if not _rates(target, precision) else source.title} has no peak of {precision}"
    if memory and isinstance(held, float) and held > ROOM * memory.value:
        return f"its memory of {held / 2**30:.0f} GiB does not fit into {target.title}"
    if not is_same_chip(source, target) and _generation(target) not in _generations():
        return f"no public or recorded data are of the generation of {target.title}"
    return ""


def is_same_chip(one: Profile, other: Profile) -> bool:
    """Return whether two devices have the same chip: equal compute capability and number of multiprocessors."""
    counts = [profile.device.multiprocessors for profile in (one, other)]
    same = one.device.compute_capability == other.device.compute_capability
    return same and all(counts) and counts[0].value == counts[1].value  # type: ignore[union-attr]


def _of(case: Mapping[str, object], source: Profile, target: Profile, kernels: pd.DataFrame) -> tuple[object, ...]:
    precision = str(case["precision"])
    here, there = _rates(source, precision), _rates(target, precision)
    assert here and there
    if is_same_chip(source, target):
        seconds, width, basis = laws.within_chip(kernels, here, there), WITHIN, SAME_CHIP
    else:
        busy = pd.DataFrame(
            {"seconds": [kernels["seconds"].sum()], **{name: [value] for name, value in here._asdict().items()}}
        )
        times = _public()
        seconds = laws.between_chips(busy, there, laws.exponents(times))
        width, basis = laws.half_width(errors_of(times)), OTHER_CHIP
    return basis, seconds, seconds * math.exp(-width), seconds * math.exp(width)


# The half width within a chip: the 80 % quantile of the errors between H100 and H200, both ways. No third device of a
# chip was at hand, so the guarantee does not cover it.
WITHIN = 0.035


def _rates(profile: Profile, precision: str) -> laws.Rates | None:
    peaks = {name: peak.value for name, peak in profile.peaks.flop_per_s.items()}
    memory = profile.peaks.memory_bytes_per_s
    return laws.rates_of(peaks, memory.value if memory else None, precision)


def _generation(profile: Profile) -> str:
    return (profile.device.compute_capability or "").partition(".")[0]


def _public() -> pd.DataFrame:
    frames = [table.frame().dropna(subset=["flop_per_s", "bytes_per_s"]) for table in load_published()]
    return pd.concat(frames, ignore_index=True)


def _generations() -> set[str]:
    profiles = set(_public()["profile"].dropna())
    return {_generation(load_profile(name)) for name in profiles}
