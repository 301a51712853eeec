"""What a claim is judged by: the records of a profile (or of several), the trials a test selects, their values.

A value is one metric of one trial in one pass. Two trials of the same records share passes, so their ratio is formed
within each pass first; those of different hosts, studies or profiles are unpaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from labkit.analysis import roofline, traced
from labkit.analysis.observations import of_pass
from labkit.analysis.recorded import value_of
from labkit.analysis.results import Results, without_data_identity
from labkit.claims import FASTEST, LARGEST, OTHERS, SEVERAL, SMALLEST, Value
from labkit.records import Record
from labkit.registry import find_metric
from labkit.statistics import (
    Interval,
    difference_interval,
    linear_interval,
    log_interval,
    ratio_interval,
    share_interval,
    unpaired_difference,
    unpaired_ratio,
)
from labkit.trial import ASKED_AFTER, Trial

IMAGES_OF_90_EPOCHS = 90 * 1_200_000  # Dell P100, "Conclusions and Future Work": 90 epochs of 1.2 million images
HOUR_S = 3600.0
# What a trial of several devices has and one of a single device can't have.
BETWEEN_DEVICES = ("scaling", "updates", "placement", "interconnect", "gradient_precision", "nodes", "network")
TRIAL_FIELDS = frozenset(one.name for one in fields(Trial))


@dataclass(frozen=True)
class Side:
    """One trial as the records of one profile have it."""

    results: Results
    trial: Trial

    def values(self, metric: str) -> dict[int, float]:
        """Pass number -> value in SI units; passes without one are left out."""
        found = {record.pass_number: in_pass(self.results, record, metric) for record in self.results.ok(self.trial)}
        return {number: value for number, value in found.items() if value is not None}

    def labels(self, name: str) -> list[str]:
        """What the passes say of a label, one for each pass that has it."""
        found = (traced.label(record, name) for record in self.results.ok(self.trial))
        return [one for one in found if one is not None]

    def why_no_label(self) -> str:
        """Why its passes do not name a kernel."""
        return next((traced.why_no_label(record) for record in self.results.ok(self.trial)), "no label was recorded")

    def field(self, name: str) -> Any:
        """A field of the trial, or whose records these are."""
        if name == "profile":
            return self.results.profile.name
        if name == "generation":
            capability = self.results.profile.device.compute_capability
            return None if capability is None else float(capability)
        return getattr(self.trial, name, None)

    def failure(self) -> str | None:
        """Why the trial gave no result in any pass; None when it gave one."""
        records = self.results.by_trial.get(self.trial, [])
        if any(record.status == "ok" for record in records):
            return None
        if not records:
            return "no record"
        return f"{records[0].status}: {records[0].reason}" if records[0].reason else records[0].status

    def same_records(self, other: Side) -> bool:
        """Whether both share host and study, and so their passes."""
        mine, others = self.results, other.results
        return (mine.profile.name, mine.study.id, mine.host_id) == (
            others.profile.name,
            others.study.id,
            others.host_id,
        )


@dataclass(frozen=True)
class Evidence:
    """The records by which claims are judged, from the view of one profile; None views all profiles alike.

    `load(profile, study)` gives the records that a page of that profile shows; `available` are the studies that have
    a notebook in this version.
    """

    profile: str | None
    profiles: tuple[str, ...]
    available: frozenset[str]
    load: Callable[[str, str], Results]
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)  # (profile, study) -> why, told by `load`

    @cached_property
    def _loaded(self) -> dict[tuple[str, str], Results]:
        return {}

    def results(self, profile: str, study: str) -> Results:
        """The records of a study on a profile; they are read once."""
        key = (profile, study)
        if key not in self._loaded:
            self._loaded[key] = self.load(profile, study)
        return self._loaded[key]

    def sides(self, study: str, *, across: bool) -> list[Side]:
        """Every trial of a study's records: of this profile, or of all of them."""
        names = self.profiles if across or self.profile is None else (self.profile,)
        found = [self.results(name, study) for name in names]
        return [Side(results, trial) for results in found for trial in results.by_trial]


def in_pass(results: Results, record: Record, metric: str) -> float | None:
    """A metric of one record in SI units, from its blocks, its facts, its telemetry, or derived from these."""
    derived = _DERIVED.get(metric)
    if derived:
        return derived(results, record)
    value = value_of(record, metric)
    return value if value is not None else of_pass(results, record, metric)


def _power_fraction(results: Results, record: Record) -> float | None:
    power_w, limit = of_pass(results, record, "power_w"), results.profile.device.board_power_w
    if power_w is None or limit is None or record.trial["device"] != results.profile.device.kind:
        return None
    return power_w / (limit.value * record.devices_used)  # of the boards that the trial used


def _late_over_early(_: Results, record: Record) -> float | None:
    """Images/s of the second half of the timed blocks over the first; an odd one in the middle is left out."""
    times = record.blocks.host_s if record.blocks else []
    half = len(times) // 2
    return sum(times[:half]) / sum(times[-half:]) if half else None


def _training_90_epochs_s(_: Results, record: Record) -> float | None:
    rate = value_of(record, "images_per_s")
    return IMAGES_OF_90_EPOCHS / rate if rate else None


def _cost_per_million_images(results: Results, record: Record) -> float | None:
    """In the profile's currency; a trial on some of its devices pays its share of the hour."""
    device = results.profile.device
    price, rate = results.profile.price_of(record.trial["device"]), value_of(record, "images_per_s")
    if price is None or not rate:
        return None
    share = record.devices_used / device.count if record.trial["device"] == device.kind else 1.0
    return 1e6 / rate * share * price.value / HOUR_S


def _roofline_fraction(results: Results, record: Record) -> float | None:
    rate, work = value_of(record, "images_per_s"), roofline.work_of(results, record.as_trial)
    limit = roofline.bound(work, roofline.measured(results, record.trial["device"])) if work else None
    return rate / limit.images_per_s if rate is not None and limit else None


def _fp32_utilisation(results: Results, record: Record) -> float | None:
    """FLOP done over peak FLOP/s and elapsed time (CERN, 3.2), in FP32. The peak is nominal, else measured."""
    rate, trial = value_of(record, "flop_per_s"), record.as_trial
    if rate is None or trial.precision != "fp32":
        return None
    peak, _ = roofline.fp32_peak(results, trial)
    return rate / (peak * record.devices_used) if peak else None


_DERIVED: dict[str, Callable[[Results, Record], float | None]] = {
    "power_fraction": _power_fraction,
    "late_over_early": _late_over_early,
    "training_90_epochs_s": _training_90_epochs_s,
    "roofline_fraction": _roofline_fraction,
    "cost_per_million_images": _cost_per_million_images,
    "fp32_utilisation": _fp32_utilisation,
}


MAY_BE_NONE = frozenset({"steps_before"})  # sizes of which 0 is one


def select(sides: Iterable[Side], wanted: dict[str, Value | list[Value]]) -> list[Side]:
    """The sides whose fields have the given values; a list means any of them.

    `largest` and `smallest` are resolved last, among the sides left that are otherwise alike. 0 is no size: a trial of
    0 epochs is no training run, and none of its own kind is the largest. But a trace may come after no further steps.
    """
    left = list(sides)
    for name, value in wanted.items():
        if value == SEVERAL:
            left = [side for side in left if (side.field(name) or 0) > 1]
        elif value not in (LARGEST, SMALLEST):
            valid = value if isinstance(value, list) else [value]
            left = [side for side in left if side.field(name) in valid or _is_either(side, name)]
    for name, value in wanted.items():
        if value in (LARGEST, SMALLEST):
            best = max if value == LARGEST else min
            left = [side for side in left if side.field(name) or name in MAY_BE_NONE]
            left = [
                side
                for family in families(left, [name])
                for side in family
                if side.field(name) == best(one.field(name) for one in family)
            ]
    return left


def _is_either(side: Side, name: str) -> bool:
    """On one device weak and strong scaling are the same."""
    return name == "scaling" and side.trial.devices == 1


def families(sides: Iterable[Side], names: Iterable[str]) -> list[list[Side]]:
    """Sides that are alike in every field but those named (and the content of their data), in order of appearance.

    What is asked after the timed part makes no other trial; nor, between workloads, does what only training has. Where
    numbers of devices are compared, one device is in every family: how several share a batch is nothing it could have.
    """
    free = {*names, *ASKED_AFTER}
    if "workload" in free:
        free |= {"loader", "optimizer"}
    along_devices = "devices" in free
    free |= {"nodes"} if along_devices else set()  # more devices than a node has come with more nodes
    found: dict[tuple[Any, ...], list[Side]] = {}
    everywhere: list[tuple[tuple[Any, ...], Side]] = []

    def family(side: Side, without: Iterable[str] = ()) -> tuple[Any, ...]:
        trial = without_data_identity(side.trial)
        alike = tuple(getattr(trial, name) for name in sorted(TRIAL_FIELDS - free - set(without)))
        of_study = side.results.study.id  # a test that looks at two studies compares within each
        return (*alike, of_study, () if free & {"profile", "generation"} else side.results.profile.name)

    of_several: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for side in sides:
        if along_devices and side.trial.devices == 1:
            everywhere.append((family(side, BETWEEN_DEVICES), side))
            continue
        key = family(side)
        found.setdefault(key, []).append(side)
        of_several[key] = family(side, BETWEEN_DEVICES)
    for alone, side in everywhere:
        keys = [key for key, common in of_several.items() if common == alone]
        for key in keys or [family(side)]:
            found.setdefault(key, []).append(side)
    return list(found.values())


def pairs(family: list[Side], over: dict[str, Value], under: dict[str, Value]) -> list[tuple[Side, Side]]:
    """The pairs of a family of which the first fits `over` and the second `under`; `others` are all other values."""
    first, second = _fitting(family, over), _fitting(family, under)
    differing = [name for name in over if OTHERS in (over[name], under[name])]
    return [(a, b) for a in first for b in second if a is not b and all(a.field(n) != b.field(n) for n in differing)]


def _fitting(family: list[Side], wanted: dict[str, Value]) -> list[Side]:
    """The sides that fit; where `fastest` is asked for, of one field or several, the one with the most images/s.

    Where none has a throughput, the first stands for all, and with its reason: but no profile stands for another.
    """
    fitting = select(family, {name: value for name, value in wanted.items() if value not in (OTHERS, FASTEST)})
    if FASTEST not in wanted.values():
        return fitting
    known = [(rate.point, place) for place, side in enumerate(fitting) if (rate := level(side, "images_per_s"))]
    if known:
        return [fitting[max(known)[1]]]
    return [] if wanted.get("profile") == FASTEST else fitting[:1]


def level(side: Side, metric: str) -> Interval | None:
    """A metric of one trial over its passes."""
    values = list(side.values(metric).values())
    if not values:
        return None
    if find_metric(metric).share and min(values) >= 0 and max(values) <= 1:
        return share_interval(values)
    return log_interval(values) if min(values) > 0 else linear_interval(values)


def ratio(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """One metric over another (or the same of another trial), within passes where they share them."""
    above, below = over.values(metric), under.values(metric_under or metric)
    if not above or not below or min(*above.values(), *below.values()) <= 0:
        return None
    if over.same_records(under):
        return ratio_interval(above, below)
    return unpaired_ratio(list(above.values()), list(below.values()))


def difference(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """One metric minus another (or the same of another trial), within passes where they share them."""
    above, below = over.values(metric), under.values(metric_under or metric)
    if not above or not below:
        return None
    if over.same_records(under):
        return difference_interval(above, below)
    return unpaired_difference(list(above.values()), list(below.values()))
