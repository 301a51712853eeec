"""The evidence for a claim: the records of one or several profiles, the trials that a test selects, their effects.

An effect is formed by `workbook.results.estimates`, from the rows of `Results.frame()` that a reader sees: so a reader
can repeat it with `workbook.ratio`.

Speed and power of an eager loop differ between equal machines by more than between passes. Such values are judged over
hosts where three or more equal hosts have them, else over the passes of the host that the page shows. Other values are
judged over hosts only if that host has too few passes for a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbook.claims.schema import FASTEST, LARGEST, OTHERS, SEVERAL, SMALLEST, Value
from workbook.registry import INDEPENDENT_OF_HOST, METRICS
from workbook.results import Results, estimates
from workbook.results import from_trace as traced
from workbook.results.estimates import EQUAL, PAIRED_BY
from workbook.results.intervals import HOSTS
from workbook.results.metrics import OF_STEP, why_missing
from workbook.results.missing import or_none, why_none
from workbook.results.study_records import StudyRecords
from workbook.statistics import Interval
from workbook.trials.parts import Exchange, Storage, fields_of
from workbook.trials.trial import ASKED_AFTER, WINDOWS, Trial, windows_alike

if TYPE_CHECKING:
    from workbook.claims.verdict import Finding

# Fields that only a trial of several devices can set.
BETWEEN_DEVICES = tuple(name for name in fields_of(Exchange) if name != "devices")
FEWEST_RUNS = 3  # of a verdict; an interval of two runs is mostly that of Student's t with one degree of freedom
OVER_HOSTS_FROM = 3  # the first protocol whose records are judged over hosts
TRIAL_FIELDS = frozenset(one.name for one in fields(Trial))


@dataclass(frozen=True)
class Side:
    """One trial in the results of one study and profile."""

    study: Results
    trial: Trial
    # The rows for metrics of a step (True) and for all other metrics (False).
    _pooled: dict[bool, pd.DataFrame] = field(default_factory=dict, compare=False, repr=False)

    @property
    def results(self) -> StudyRecords:
        """The records of the shown host."""
        return self.study.selected[0]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The rows of the results' table on the shown host: one per pass."""
        return self.study.rows(self.trial)

    @property
    def protocols(self) -> set[int]:
        """The protocols of the rows on the shown host; one, as records of two are never selected together."""
        return set(self.rows["protocol"])

    def has(self, metric: str) -> bool:
        """Return whether some pass on the shown host has a value of a metric."""
        return bool(self.rows[metric].notna().any())

    def rows_on_hosts(self, metric: str) -> pd.DataFrame:
        """Return the rows of the trial on the shown host and on the hosts that may be pooled with it for a metric.

        They have the same machine, protocol and scale. Before protocol 3 the shown host is alone. A host that did not
        run the trial gives its runs with other energy windows, if these leave the metric as it is (`windows_alike`).
        """
        every, of_step = self.study.on_all_hosts, metric in OF_STEP
        if len(every.selected) < HOSTS or (self.rows["protocol"] < OVER_HOSTS_FROM).any():
            return self.rows
        if of_step not in self._pooled:
            windows = partial(windows_alike, of_step=of_step)
            own = windows(self.trial.energy_windows)
            trials = [trial for trial in every.of_any_windows(self.trial) if windows(trial.energy_windows) == own]
            self._pooled[of_step] = self._of_equal_hosts(pd.concat([every.rows(trial) for trial in trials]))
        return self._pooled[of_step]

    def _of_equal_hosts(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the successful rows of the hosts that equal the shown one, of each the first trial in `rows`."""
        first = rows[WINDOWS] == rows.groupby("host")[WINDOWS].transform("first")
        rows = rows[first & (rows["status"] == "ok")]
        kinds = {host: set(map(tuple, of[[*EQUAL]].to_numpy())) for host, of in rows.groupby("host")}
        equal = [host for host, kind in kinds.items() if kind == kinds.get(self.results.host_id)]
        return rows[rows["host"].isin(equal)]

    def equal_hosts(self, metric: str) -> list[tuple[StudyRecords, Trial]]:
        """Return the records of the hosts of `rows_on_hosts`, with the trial that each of them ran."""
        windows = dict(self.rows_on_hosts(metric)[["host", WINDOWS]].itertuples(index=False))
        return [
            (results, replace(self.trial, energy_windows=int(windows[results.host_id])))
            for results in self.study.on_all_hosts.selected
            if results.host_id in windows
        ]

    def depends_on_host(self, metric: str) -> bool:
        """Return whether the metric's value differs between equal machines: speed or power of a GPU's eager loop."""
        on_gpu = self.results.profile.device.kind == "cuda"
        return on_gpu and self.trial.is_host_bound and metric in METRICS and metric not in INDEPENDENT_OF_HOST

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
        if "ok" in set(self.rows["status"]):
            return None
        status, reason = self.rows[["status", "reason"]].iloc[0]
        return f"{status}: {reason}" if reason else str(status)


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
    findings: dict[str, Finding] = field(default_factory=dict)  # claim id -> what `judge` has found
    _sides: dict[tuple[str, str], list[Side]] = field(default_factory=dict)  # each table is made once

    def sides(self, study: str, *, across: bool) -> list[Side]:
        """Return every trial of a study's records: of `profile`, or with `across` or without `profile`, of all.

        Records of round 0 are no evidence: one run of small sizes.
        """
        names = self.profiles if across or self.profile is None else (self.profile,)
        return [side for name in names for side in self._sides_of(name, study)]

    def _sides_of(self, profile: str, study: str) -> list[Side]:
        place = (profile, study)
        if place not in self._sides:
            shown = self.results(*place)
            table = Results([shown], partial(self.others, *place))
            self._sides[place] = [] if shown.is_small else [Side(table, trial) for trial in shown.by_trial]
        return self._sides[place]


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
    workloads, nor the number of energy windows (`windows_alike`). Along `devices`, a trial of one device joins all
    families that it fits: it cannot set `BETWEEN_DEVICES`. Along `nodes`, trials with equally many devices on each node
    are alike.
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
        of_trial = {name: getattr(side.trial, name) for name in sorted(TRIAL_FIELDS - free - set(without))}
        if WINDOWS in of_trial:
            of_trial[WINDOWS] = windows_alike(of_trial[WINDOWS])
        of_study = side.results.study.id  # a test that looks at two studies compares within each
        of_node = side.trial.devices_of_node if along_nodes else ()
        of_profile = () if free & {"profile", "generation"} else side.results.profile.name
        return (*of_trial.values(), of_node, of_study, of_profile)

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
    (rows,) = samples((side, metric))
    return estimates.level(rows, metric)


def compare(form: str, over: Side, under: Side, metric: str, metric_under: str | None = None) -> Interval | None:
    """Return the "ratio" or "difference" of a metric of two trials; `metric_under` is another metric of `under`.

    Trials of two protocols have none, because each protocol makes its numbers in its own way.
    """
    if over.protocols != under.protocols:
        return None
    above, below = samples((over, metric), (under, metric_under or metric))
    return estimates.compare(form, above, below, metric, metric_under)


def ratio(over: Side, under: Side, metric: str) -> Interval | None:
    """Return a metric of one trial divided by that of another."""
    return compare("ratio", over, under, metric)


def samples(*wanted: tuple[Side, str]) -> list[pd.DataFrame]:
    """Return the rows of each side that an effect of these metrics is formed from.

    If a value depends on the host, they are of all equal hosts that every side of a profile has, if these are `HOSTS`
    or more in each profile. Else they are so in each profile whose shown host has fewer passes than a verdict needs.
    All others are of the shown host.
    """
    few = {side.field("profile") for side, metric in wanted if 0 < side.rows[metric].count() < FEWEST_RUNS}
    depends = any(side.depends_on_host(metric) for side, metric in wanted)
    if few or depends:
        pooled = [
            (side.field("profile"), side.rows_on_hosts(metric)[[*PAIRED_BY, metric]].dropna(subset=[metric]))
            for side, metric in wanted
        ]
        common: dict[str, set[str]] = {}
        for profile, rows in pooled:
            common[profile] = common.get(profile, set(rows["host"])) & set(rows["host"])
        enough = {profile for profile, hosts in common.items() if len(hosts) >= HOSTS}
        several = enough & few if not depends else enough if enough == common.keys() else set()
        return [
            rows[rows["host"].isin(common[profile])] if profile in several else side.rows
            for (profile, rows), (side, _) in zip(pooled, wanted, strict=True)
        ]
    return [side.rows for side, _ in wanted]
