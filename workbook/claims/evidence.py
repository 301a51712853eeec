"""The evidence for a claim: the records of one or several profiles, the trials that a test selects, their values.

A value is one metric of one trial in one pass on one host. Two trials of the same records share passes, so their ratio
is formed within each pass first. Trials of different hosts, studies or profiles are unpaired.

Speed and power of an eager loop differ between equal machines by more than between passes. Such values are judged over
hosts where three or more equal hosts have them, else over the passes of the host that the page shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

from workbook.claims.schema import FASTEST, LARGEST, OTHERS, SEVERAL, SMALLEST, Value
from workbook.records import short_hash
from workbook.registry import INDEPENDENT_OF_HOST, METRICS
from workbook.results import from_trace as traced
from workbook.results.estimates import OWN_PROCESSES
from workbook.results.intervals import (
    HOSTS,
    Passes,
    are_planned_alike,
    difference_of,
    hosts_of,
    in_one_process,
    level_of,
    ratio_of,
)
from workbook.results.metrics import metric_of, why_missing
from workbook.results.missing import or_none, why_none
from workbook.results.study_records import StudyRecords
from workbook.statistics import Interval
from workbook.trials.parts import Exchange, Storage, fields_of
from workbook.trials.trial import ASKED_AFTER, Trial

# Fields that only a trial of several devices can set.
BETWEEN_DEVICES = tuple(name for name in fields_of(Exchange) if name != "devices")
OVER_HOSTS_FROM = 3  # the first protocol whose records are judged over hosts
TRIAL_FIELDS = frozenset(one.name for one in fields(Trial))


@dataclass(frozen=True)
class Side:
    """One trial in the records of one profile. `others` returns the study's records of the profile's other hosts."""

    results: StudyRecords
    trial: Trial
    others: Callable[[], Sequence[StudyRecords]] = tuple

    def values(self, metric: str) -> dict[int, float]:
        """Return pass number -> value in SI units on the shown host; passes without a value are left out."""
        return {number: value for (_, number), value in self.by_host(metric, [self.results]).items()}

    def by_host(self, metric: str, of_hosts: Iterable[StudyRecords]) -> Passes:
        """Return (host, pass number) -> value in SI units; passes without a value are left out."""
        values = {
            (results.host_id or "", record.pass_number): metric_of(results, record, metric)
            for results in of_hosts
            for record in results.ok(self.trial)
        }
        return {key: value for key, value in values.items() if value is not None}

    @property
    def processes(self) -> dict[tuple[str, int], str]:
        """The process of each pass on the shown host, by (host, pass number)."""
        host = self.results.host_id or ""
        return {(host, record.pass_number): record.process.id for record in self.results.ok(self.trial)}

    @cached_property
    def equal_hosts(self) -> list[StudyRecords]:
        """The records of the shown host and of the hosts that may be pooled with it for this trial.

        They have the same machine, protocol and scale. Before protocol 3 the shown host is alone.
        """
        own = self.results.ok(self.trial)
        if not own or own[0].protocol < OVER_HOSTS_FROM:
            return [self.results]

        def kind(results: StudyRecords) -> set[tuple[str, int, str]]:
            return {(results.machine(r), r.protocol, r.scale) for r in results.ok(self.trial)}

        return [self.results, *(results for results in self.others() if kind(results) == kind(self.results))]

    def depends_on_host(self, metric: str) -> bool:
        """Return whether the metric's value differs between equal machines: speed or power of a GPU's eager loop."""
        on_gpu = self.results.profile.device.kind == "cuda"
        return on_gpu and self.trial.is_host_bound and metric in METRICS and metric not in INDEPENDENT_OF_HOST

    @property
    def planned(self) -> int:
        """The planned number of passes of the trial; 0 without records."""
        records = self.results.by_trial.get(self.trial, [])
        return max((record.planned.passes.get(short_hash(record.key), 0) for record in records), default=0)

    def labels(self, name: str) -> list[str]:
        """Return the texts of a label, one for each pass that has it."""
        texts = (or_none(traced.label, record, name) for record in self.results.ok(self.trial))
        return [text for text in texts if text is not None]

    def why_missing(self, metric: str) -> str:
        """Return why the passes of this trial have no value of a metric: their different reasons."""
        return "; ".join(sorted({why_missing(self.results, record, metric) for record in self.results.ok(self.trial)}))

    def why_no_label(self, name: str) -> str:
        """Return why the passes of this trial have no label `name`."""
        reasons = (why_none(traced.label, record, name) for record in self.results.ok(self.trial))
        return next(reasons, "no label was recorded")

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
        return f"{records[0].status}: {records[0].dated_reason}" if records[0].reason else records[0].status

    def same_records(self, other: Side) -> bool:
        """Return whether both sides have the same profile, study and host, and so share passes."""
        own_records, other_records = (
            (side.results.profile.name, side.results.study.id, side.results.host_id) for side in (self, other)
        )
        return own_records == other_records


@dataclass(frozen=True)
class Evidence:
    """The records that judge the claims, seen from `profile`; with None, all profiles count alike.

    `results(profile, study)` returns the records that a page of that profile shows, and `others` those of the profile's
    other hosts at that scale.
    """

    profile: str | None
    profiles: tuple[str, ...]
    results: Callable[[str, str], StudyRecords]
    others: Callable[[str, str], Sequence[StudyRecords]] = lambda _, __: ()
    unreadable: dict[tuple[str, str], str] = field(default_factory=dict)  # (profile, study) -> reason, by `results`

    def sides(self, study: str, *, across: bool) -> list[Side]:
        """Return every trial of a study's records: of `profile`, or with `across` or without `profile`, of all."""
        names = self.profiles if across or self.profile is None else (self.profile,)
        return [
            Side(self.results(name, study), trial, partial(self.others, name, study))
            for name in names
            for trial in self.results(name, study).by_trial
        ]


MAY_BE_NONE = frozenset({"steps_before"})  # fields in which 0 is a valid size


def select(sides: Iterable[Side], wanted: dict[str, Value | list[Value]]) -> list[Side]:
    """Return the sides whose fields have the wanted values; a list allows any of its values.

    Trials with a host setting fit only a test that names it: papers speak of loops that nobody tuned that way. Trials
    that read files fit only a test that names a field of them: the others are about devices that do not wait for data.
    """
    left = [side for side in sides if "host_setting" in wanted or side.field("host_setting") == Trial.host_setting]
    if wanted.keys().isdisjoint(fields_of(Storage)):
        left = [side for side in left if side.field("form") == Trial.form]
    return _having(left, wanted)


def _having(sides: Iterable[Side], wanted: dict[str, Value | list[Value]]) -> list[Side]:
    """Return the sides whose fields have the wanted values.

    `largest` and `smallest` apply last, among the remaining sides that are otherwise alike. They skip sides with 0,
    which is no size: a trial of 0 epochs is no training run. 0 counts in `MAY_BE_NONE`: a trace may need no more steps.
    """
    left = list(sides)
    for name, value in wanted.items():
        if value == SEVERAL:
            left = [side for side in left if (side.field(name) or 0) > 1]
        elif value not in (LARGEST, SMALLEST):
            valid = value if isinstance(value, list) else [value]
            # On one device weak and strong scaling are the same.
            left = [
                side for side in left if side.field(name) in valid or (name == "scaling" and side.trial.devices == 1)
            ]
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
    free |= {"devices", "readers"} if along_nodes else set()  # each process of a training has a reader
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
    fitting = _having(family, {name: value for name, value in wanted.items() if value not in (OTHERS, FASTEST)})
    if FASTEST not in wanted.values():
        return fitting
    ranked = [(rate.point, place) for place, side in enumerate(fitting) if (rate := level(side, "images_per_s"))]
    if ranked:
        return [fitting[max(ranked)[1]]]
    return [] if wanted.get("profile") == FASTEST else fitting[:1]


def level(side: Side, metric: str) -> Interval | None:
    """Return the interval of a metric of one trial, over passes or hosts; None without a value."""
    (values,) = samples([(side, metric)])
    return level_of(values, metric)


def ratio(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """Return one metric divided by another (or by that of another trial), within passes if both sides share them."""
    above, below, paired = _sides(over, under, metric, metric_under or metric)
    return ratio_of(above, below, paired=paired)


def difference(over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """Return one metric minus another (or minus that of another trial), within passes if both sides share them."""
    above, below, paired = _sides(over, under, metric, metric_under or metric)
    return difference_of(above, below, paired=paired)


def samples(wanted: Sequence[tuple[Side, str]]) -> list[Passes]:
    """Return the values of each side and metric that an effect is formed from.

    They are of all equal hosts that every side of a profile has, if these are `HOSTS` or more and a value depends on
    the host. Else they are of the shown host.
    """
    if any(side.depends_on_host(metric) for side, metric in wanted) and all(
        len(side.equal_hosts) >= HOSTS for side, _ in wanted
    ):
        values = [side.by_host(metric, side.equal_hosts) for side, metric in wanted]
        common: dict[str, set[str]] = {}
        for (side, _), of_side in zip(wanted, values, strict=True):
            name = side.results.profile.name
            common[name] = common.get(name, hosts_of(of_side)) & hosts_of(of_side)
        if all(len(hosts) >= HOSTS for hosts in common.values()):
            return [
                {key: value for key, value in of_side.items() if key[0] in common[side.results.profile.name]}
                for (side, _), of_side in zip(wanted, values, strict=True)
            ]
    return [side.by_host(metric, [side.results]) for side, metric in wanted]


def _sides(over: Side, under: Side, metric: str, metric_under: str) -> tuple[Passes, Passes, bool]:
    """Return the values of both sides, and whether to compare them within passes: only those that they may share."""
    above, below = samples([(over, metric), (under, metric_under)])
    paired = over.same_records(under) and are_planned_alike(above, below, (over.planned, under.planned))
    alike = all(getattr(over.trial, name) == getattr(under.trial, name) for name in OWN_PROCESSES)
    if not paired or not alike or len(hosts_of(above)) > 1:
        return above, below, paired
    above, below = in_one_process((above, below), (over.processes, under.processes))
    return above, below, paired
