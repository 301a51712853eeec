"""The evidence for a claim: the records of one or several profiles, the trials that a test selects, their values.

A value is one metric of one trial in one pass. Two trials of the same records share passes, so their ratio is formed
within each pass first. Trials of different hosts, studies or profiles are unpaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from labkit.claims.schema import FASTEST, LARGEST, OTHERS, SEVERAL, SMALLEST, Value
from labkit.results import from_trace as traced
from labkit.results.estimates import OWN_PROCESSES, difference_of_passes, interval_of, ratio_of_passes, sharing_process
from labkit.results.metrics import metric_of
from labkit.results.study_records import StudyRecords
from labkit.statistics import Interval
from labkit.trial import ASKED_AFTER, Trial

# Fields that only a trial of several devices can set.
BETWEEN_DEVICES = ("scaling", "updates", "placement", "interconnect", "gradient_precision", "nodes", "network")
TRIAL_FIELDS = frozenset(one.name for one in fields(Trial))


@dataclass(frozen=True)
class Side:
    """One trial in the records of one profile."""

    results: StudyRecords
    trial: Trial

    def values(self, metric: str) -> dict[int, float]:
        """Return pass number -> value in SI units; passes without a value are left out."""
        values = {record.pass_number: metric_of(self.results, record, metric) for record in self.results.ok(self.trial)}
        return {number: value for number, value in values.items() if value is not None}

    def labels(self, name: str) -> list[str]:
        """Return the texts of a label, one for each pass that has it."""
        texts = (traced.label(record, name) for record in self.results.ok(self.trial))
        return [text for text in texts if text is not None]

    def why_no_label(self) -> str:
        """Return why the passes of this trial have no label."""
        return next((traced.why_no_label(record) for record in self.results.ok(self.trial)), "no label was recorded")

    def field(self, name: str) -> Any:
        """Return a field of the trial, or the `profile` or GPU `generation` of its records; None if unknown."""
        if name == "profile":
            return self.results.profile.name
        if name == "generation":
            capability = self.results.profile.device.compute_capability
            return None if capability is None else float(capability)
        return getattr(self.trial, name, None)

    def failure(self) -> str | None:
        """Return why no pass of the trial has a result; None if a pass has one."""
        records = self.results.by_trial.get(self.trial, [])
        if any(record.status == "ok" for record in records):
            return None
        if not records:
            return "no record"
        return f"{records[0].status}: {records[0].reason}" if records[0].reason else records[0].status

    def same_records(self, other: Side) -> bool:
        """Return whether both sides have the same profile, study and host, and so share passes."""
        own_records, other_records = (
            (side.results.profile.name, side.results.study.id, side.results.host_id) for side in (self, other)
        )
        return own_records == other_records


@dataclass(frozen=True)
class Evidence:
    """The records that judge the claims, seen from `profile`; with None, all profiles count alike.

    `load(profile, study)` returns the records that a page of that profile shows. `available` are the studies that have
    a notebook in this version.
    """

    profile: str | None
    profiles: tuple[str, ...]
    available: frozenset[str]
    load: Callable[[str, str], StudyRecords]
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)  # (profile, study) -> reason, set by `load`

    @cached_property
    def _loaded(self) -> dict[tuple[str, str], StudyRecords]:
        return {}

    def results(self, profile: str, study: str) -> StudyRecords:
        """Return the records of a study on a profile; they are read once."""
        key = (profile, study)
        if key not in self._loaded:
            self._loaded[key] = self.load(profile, study)
        return self._loaded[key]

    def sides(self, study: str, *, across: bool) -> list[Side]:
        """Return every trial of a study's records: of `profile`, or with `across` or without `profile`, of all."""
        names = self.profiles if across or self.profile is None else (self.profile,)
        return [
            Side(results, trial)
            for name in names
            for results in [self.results(name, study)]
            for trial in results.by_trial
        ]


MAY_BE_NONE = frozenset({"steps_before"})  # fields in which 0 is a valid size


def select(sides: Iterable[Side], wanted: dict[str, Value | list[Value]]) -> list[Side]:
    """Return the sides whose fields have the wanted values; a list allows any of its values.

    `largest` and `smallest` apply last, among the remaining sides that are otherwise alike. They skip sides with 0,
    which is no size: a trial of 0 epochs is no training run. 0 counts in `MAY_BE_NONE`: a trace may need no more steps.
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
                if side.field(name) == best(member.field(name) for member in family)
            ]
    return left


def _is_either(side: Side, name: str) -> bool:
    """Return whether any value of the field fits: on one device weak and strong scaling are the same."""
    return name == "scaling" and side.trial.devices == 1


def families(sides: Iterable[Side], names: Iterable[str]) -> list[list[Side]]:
    """Return groups of sides that differ only in `names` and in the content of their data, in order of appearance.

    Fields that apply after the timed part (`ASKED_AFTER`) separate no sides, nor do the fields of training between
    workloads. Along `devices`, a trial of one device joins all families that it fits: it cannot set `BETWEEN_DEVICES`.
    Along `nodes`, trials with equally many devices on each node are alike.
    """
    free = {*names, *ASKED_AFTER, "data_checksum"}
    if "workload" in free:
        free |= {"loader", "optimizer"}
    along_devices = "devices" in free
    along_nodes = "nodes" in free and not along_devices
    free |= {"nodes"} if along_devices else set()  # more devices than one node has need more nodes
    free |= {"devices"} if along_nodes else set()
    by_key: dict[tuple[Any, ...], list[Side]] = {}
    everywhere: list[tuple[tuple[Any, ...], Side]] = []

    def family(side: Side, without: Iterable[str] = ()) -> tuple[Any, ...]:
        alike = tuple(getattr(side.trial, name) for name in sorted(TRIAL_FIELDS - free - set(without)))
        of_study = side.results.study.id  # a test that looks at two studies compares within each
        of_node = side.trial.devices_of_node if along_nodes else ()
        return (*alike, of_node, of_study, () if free & {"profile", "generation"} else side.results.profile.name)

    of_several: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for side in sides:
        if along_devices and side.trial.devices == 1:
            everywhere.append((family(side, BETWEEN_DEVICES), side))
            continue
        key = family(side)
        by_key.setdefault(key, []).append(side)
        of_several[key] = family(side, BETWEEN_DEVICES)
    for alone, side in everywhere:
        keys = [key for key, common in of_several.items() if common == alone]
        for key in keys or [family(side)]:
            by_key.setdefault(key, []).append(side)
    return list(by_key.values())


def pairs(family: list[Side], over: dict[str, Value], under: dict[str, Value]) -> list[tuple[Side, Side]]:
    """Return pairs of sides that fit `over` and `under`; `others` in one of them is every other value of the field."""
    first, second = _fitting(family, over), _fitting(family, under)
    differing = [name for name in over if OTHERS in (over[name], under[name])]
    return [(a, b) for a in first for b in second if a is not b and all(a.field(n) != b.field(n) for n in differing)]


def _fitting(family: list[Side], wanted: dict[str, Value]) -> list[Side]:
    """Return the sides that fit; if a field is `fastest`, return only the side with the most images/s.

    If no side has a throughput, return the first, which has the reason; [] for the fastest profile.
    """
    fitting = select(family, {name: value for name, value in wanted.items() if value not in (OTHERS, FASTEST)})
    if FASTEST not in wanted.values():
        return fitting
    ranked = [(rate.point, place) for place, side in enumerate(fitting) if (rate := level(side, "images_per_s"))]
    if ranked:
        return [fitting[max(ranked)[1]]]
    return [] if wanted.get("profile") == FASTEST else fitting[:1]


def level(side: Side, metric: str) -> Interval | None:
    """Return the interval of a metric over the passes of one trial; None without a value."""
    return interval_of(side.values(metric).values(), metric)


def ratio(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """Return one metric divided by another (or by that of another trial), within passes if both sides share them."""
    return ratio_of_passes(*_paired(over, under, metric, metric_under or metric), paired=over.same_records(under))


def difference(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """Return one metric minus another (or minus that of another trial), within passes if both sides share them."""
    return difference_of_passes(*_paired(over, under, metric, metric_under or metric), paired=over.same_records(under))


def _paired(over: Side, under: Side, metric: str, metric_under: str) -> tuple[dict[int, float], dict[int, float]]:
    """Return the values of both sides by pass; of the same records, only those of passes that they may share."""
    above, below = over.values(metric), under.values(metric_under)
    if not over.same_records(under) or any(getattr(over.trial, n) != getattr(under.trial, n) for n in OWN_PROCESSES):
        return above, below
    first, second = ({record.pass_number: record.process.id for record in s.results.ok(s.trial)} for s in (over, under))
    shared = sharing_process(first, second)
    return {n: value for n, value in above.items() if n in shared}, {
        n: value for n, value in below.items() if n in shared
    }
