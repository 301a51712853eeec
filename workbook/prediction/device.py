"""A prediction for recorded configurations on a device without records, or the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd

from workbook.hardware.profile import Profile, load_profile
from workbook.prediction import laws
from workbook.prediction.guarantee import (
    is_same_chip,
    left_out,
    left_out_within_chips,
    published_times,
    rates_of_profile,
)
from workbook.results import Results
from workbook.results.columns import WHAT_RAN
from workbook.trials.trial import OF_NETWORKS
from workbook.words import NAN, label

SAME_CHIP, OTHER_CHIP = "kernel classes, same chip", "two exponents, other chip"
UNCLASSED = "unknown"  # the class of kernels of which only the sum of seconds is recorded
ROOM = 0.95  # of a device's memory that a network may fill
PREDICTED = ["basis", "device_s", "low_s", "high_s"]
SMALL_SIZES = "it was measured at the small sizes of round 0"


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
    laws = Laws(target)
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
            reason = SMALL_SIZES if records.is_small else refused(case, records.profile, target, steps)
            sources = [(records.profile, steps)]
            made = ("", NAN, NAN, NAN) if reason else laws.predicted(str(case["precision"]), sources)
            about = {name: case[name] for name in WHAT_RAN} | {"profile": records.profile.name, "to": to}
            values = dict(zip(PREDICTED, made, strict=True))
            rows.append({**about, "busy_s": steps["seconds"].sum() or NAN, **values, "reason": reason})
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
        lacking = source if rates_of_profile(target, precision) else target
        return f"{lacking.title} has no peak of {label('precision', precision)}"
    if memory and isinstance(held, float) and held > ROOM * memory.value:
        return f"its memory of {held / 2**30:.0f} GiB does not fit into {target.title}"
    if not is_same_chip(source, target) and _generation(target) not in _generations():
        return f"no device that predictions rest on has the chip generation of {target.title}"
    return ""


class Laws:
    """The laws for a target, with what they learn from all other devices."""

    def __init__(self, target: Profile) -> None:
        self._target = target
        self._fitted, self._width = _learnt_without(target.name)

    @cached_property
    def width_within(self) -> float:
        """The half width within a chip: of pairs without the target; where there is no such pair, of unlike chips."""
        pairs = left_out_within_chips()
        others = pairs[(pairs["device"] != self._target.name) & (pairs["source"] != self._target.name)]
        width = laws.half_width([float(value) for value in np.log(others["predicted"] / others["measured"])])
        return min(width, self._width)

    def predicted(
        self, precision: str, sources: Sequence[tuple[Profile, pd.DataFrame]]
    ) -> tuple[str, float, float, float]:
        """Return the name of the law, the seconds of a step's kernels, and the ends of their interval.

        `sources` are devices that measured the step, with its kernels by class, or one row where classes are unknown.
        A source of the same chip with classes decides; else all sources count alike.
        """
        there = rates_of_profile(self._target, precision)
        rated = [(rates_of_profile(profile, precision), profile, kernels) for profile, kernels in sources]
        assert there
        for here, profile, kernels in rated:
            if here and is_same_chip(profile, self._target) and UNCLASSED not in set(kernels["kernel_class"]):
                seconds, width = laws.within_chip(kernels, here, there), self.width_within
                return SAME_CHIP, seconds, seconds * math.exp(-width), seconds * math.exp(width)
        busy = [{"seconds": kernels["seconds"].sum(), **here._asdict()} for here, _, kernels in rated if here]
        seconds = laws.between_chips(pd.DataFrame(busy), there, self._fitted)
        return OTHER_CHIP, seconds, seconds * math.exp(-self._width), seconds * math.exp(self._width)


def _learnt_without(profile: str) -> tuple[tuple[float, float], float]:
    """Return the exponents, and the half width of the interval, from all published devices but one."""
    times, cases = published_times(), left_out()
    own = cases[cases["device"].isin(times.loc[times["profile"] == profile, "device"])]
    errors = np.log(cases["predicted"] / cases["measured"])
    width = float(own["width"].iloc[0]) if len(own) else laws.half_width([float(error) for error in errors])
    return laws.exponents(times[times["profile"] != profile]), width


def _generation(profile: Profile) -> str:
    return (profile.device.compute_capability or "").partition(".")[0]


@cache
def _generations() -> set[str]:
    return {_generation(load_profile(name)) for name in published_times()["profile"].dropna().unique()}
