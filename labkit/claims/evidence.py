"""What a claim is judged by: the records of a profile (or of several), the trials a test selects, their values.

A value is one metric of one trial in one pass. Two trials of the same records share passes, so their ratio is formed
within each pass first; those of different hosts, studies or profiles are unpaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from labkit.claims.schema import FASTEST, LARGEST, OTHERS, SEVERAL, SMALLEST, Value
from labkit.results import from_trace as traced
from labkit.results.estimates import difference_of_passes, interval_of, ratio_of_passes
from labkit.results.metrics import metric_of
from labkit.results.study_records import StudyRecords
from labkit.statistics import Interval
from labkit.trial import ASKED_AFTER, Trial

# What a trial of several devices has and one of a single device can't have.
BETWEEN_DEVICES = ("scaling", "updates", "placement", "interconnect", "gradient_precision", "nodes", "network")
TRIAL_FIELDS = frozenset(one.name for one in fields(Trial))


@dataclass(frozen=True)
class Side:
    """One trial as the records of one profile have it."""

    results: StudyRecords
    trial: Trial

    def values(self, metric: str) -> dict[int, float]:
        """Pass number -> value in SI units; passes without one are left out."""
        values = {one.pass_number: metric_of(self.results, one, metric) for one in self.results.ok(self.trial)}
        return {number: value for number, value in values.items() if value is not None}

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
        mine, others = (
            (side.results.profile.name, side.results.study.id, side.results.host_id) for side in (self, other)
        )
        return mine == others


@dataclass(frozen=True)
class Evidence:
    """The records by which claims are judged, from the view of one profile; None views all profiles alike.

    `load(profile, study)` gives the records that a page of that profile shows; `available` are the studies that have
    a notebook in this version.
    """

    profile: str | None
    profiles: tuple[str, ...]
    available: frozenset[str]
    load: Callable[[str, str], StudyRecords]
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)  # (profile, study) -> why, told by `load`

    @cached_property
    def _loaded(self) -> dict[tuple[str, str], StudyRecords]:
        return {}

    def results(self, profile: str, study: str) -> StudyRecords:
        """The records of a study on a profile; they are read once."""
        key = (profile, study)
        if key not in self._loaded:
            self._loaded[key] = self.load(profile, study)
        return self._loaded[key]

    def sides(self, study: str, *, across: bool) -> list[Side]:
        """Every trial of a study's records: of this profile, or of all of them."""
        names = self.profiles if across or self.profile is None else (self.profile,)
        return [
            Side(results, trial)
            for name in names
            for results in [self.results(name, study)]
            for trial in results.by_trial
        ]


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
    free = {*names, *ASKED_AFTER, "data_checksum"}
    if "workload" in free:
        free |= {"loader", "optimizer"}
    along_devices = "devices" in free
    free |= {"nodes"} if along_devices else set()  # more devices than a node has come with more nodes
    found: dict[tuple[Any, ...], list[Side]] = {}
    everywhere: list[tuple[tuple[Any, ...], Side]] = []

    def family(side: Side, without: Iterable[str] = ()) -> tuple[Any, ...]:
        alike = tuple(getattr(side.trial, name) for name in sorted(TRIAL_FIELDS - free - set(without)))
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
    return interval_of(side.values(metric).values(), metric)


def ratio(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """One metric over another (or the same of another trial), within passes where they share them."""
    above, below = over.values(metric), under.values(metric_under or metric)
    return ratio_of_passes(above, below, paired=over.same_records(under))


def difference(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """One metric minus another (or the same of another trial), within passes where they share them."""
    above, below = over.values(metric), under.values(metric_under or metric)
    return difference_of_passes(above, below, paired=over.same_records(under))
