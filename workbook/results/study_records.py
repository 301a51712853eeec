"""The records of one study and host that belong together, as a page shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from labkit.data import OWN_JPEGS
from workbook.hardware.host import lacks_family
from workbook.hardware.identity import fingerprint
from workbook.hardware.profile import Profile
from workbook.records import PROTOCOL, Record
from workbook.records.other_load import other_load
from workbook.records.store import Store
from workbook.registry import SMALL, Study
from workbook.results.from_result import value_of
from workbook.statistics import log_interval
from workbook.trials.trial import Trial, configuration


def image_set(record: Record) -> str:
    """Return classes and images of a user's set of images in files, `10 classes, 30 images`; else an empty text."""
    classes, images = record.number("set_classes"), record.number("set_images")
    if record.trial["data"] != OWN_JPEGS or classes is None or images is None:
        return ""
    return f"{classes:,.0f} classes, {images:,.0f} images"


@dataclass(frozen=True, repr=False, eq=False)  # compared by identity: thousands of records take long
class StudyRecords:
    """The latest records of one study, host and scale that belong together. Empty when there are none."""

    study: Study
    profile: Profile
    scale: str
    host_id: str | None
    host: dict[str, Any]
    records: list[Record]
    lines: dict[tuple[str, int], int] = field(default_factory=dict)  # (key, pass) -> line in the file of records
    files: dict[str, str] = field(default_factory=dict)  # study -> name of its file of records, which may be compressed
    store: Store | None = None  # where the records were read
    rounds: tuple[int, int] = (0, 0)  # complete and planned; a round is one pass of all trials that have so many

    def __repr__(self) -> str:
        return f"{self.study.id} of {self.profile.name}: {self.describe()}"

    def __bool__(self) -> bool:
        return bool(self.records)

    @cached_property
    def by_trial(self) -> dict[Trial, list[Record]]:
        """Trial -> its records; trials in reading order, passes ascending."""
        grouped: dict[Trial, list[Record]] = {}
        for record in sorted(self.records, key=lambda record: record.pass_number):
            grouped.setdefault(record.as_trial, []).append(record)
        return dict(sorted(grouped.items(), key=lambda item: _reading_order(item[0])))

    def trials(self, **fields: Any) -> list[Trial]:
        """Return the trials whose fields have the given values."""
        return [trial for trial in self.by_trial if all(getattr(trial, name) == fields[name] for name in fields)]

    def ok(self, trial: Trial) -> list[Record]:
        """Return the passes of a trial that have a result."""
        return [record for record in self.by_trial.get(trial, []) if record.status == "ok" and record.result]

    def number(self, trial: Trial, fact: str) -> float | None:
        """Return a number that the workload reported (parameters, FLOP, …); None if no pass has it."""
        numbers = (record.number(fact) for record in self.ok(trial))
        return next((number for number in numbers if number is not None), None)

    def failures(self) -> list[Record]:
        """Return the records without a result."""
        return [record for record in self.records if record.status != "ok"]

    def ceiling(
        self, workload: str, metric: str, *, device: str, precision: str = "fp32", pass_number: int | None = None
    ) -> float | None:
        """Return a device's ceiling: of arithmetic, memory or launches, as `workload` and `metric` say.

        The pairs are `matmul` and `flop_per_s`, `memory_copy` and `bytes_per_s`, `launch_rate` and `launches_per_s`.
        The value is that of a pass, or by default the geometric mean of the measured passes; None without any.
        """
        for trial in self.trials(workload=workload, precision=precision, device=device):
            passes = [record for record in self.ok(trial) if pass_number in (None, record.pass_number)]
            values = [value for record in passes if (value := value_of(record, metric)) is not None]
            if values:
                return log_interval(values).point
        return None

    @cached_property
    def has_fixed_cpu_clock(self) -> bool:
        """Whether the processor's clock reads the same in all records: a virtual machine shows the nominal clock."""
        read = [
            statistic
            for record in self.records
            if record.telemetry
            for window in record.telemetry.windows.values()
            for source in window.sources.values()
            if (statistic := source.get("cpu_clock_hz"))
        ]
        return len(read) > 1 and len({end for statistic in read for end in (statistic.low, statistic.high)}) == 1

    @cached_property
    def unreadable(self) -> dict[tuple[str, str], str]:
        """(source, metric) -> the first reason why this machine could not read the metric."""
        return {
            (source, metric): reason
            for record in reversed(self.records)
            if record.telemetry
            for source, reasons in record.telemetry.missing.items()
            for metric, reason in reasons.items()
        }

    @property
    def protocol(self) -> int:
        """The protocol of the records; this version's without any."""
        return self.records[0].protocol if self.records else PROTOCOL

    @property
    def how_measured(self) -> str:
        """What a page says of an older protocol, of incomplete rounds, and of runs beside other work; else empty."""
        (complete, planned), beside = self.rounds, self.beside_others
        parts = [
            f"by the older protocol {self.protocol}" if self.protocol < PROTOCOL else "",
            f"with {complete} of {planned} rounds so far" if complete < planned else "",
            f"{beside} of {len(self.records)} runs while others used the machine" if beside else "",
        ]
        return ", ".join(filter(None, parts))

    @cached_property
    def beside_others(self) -> int:
        """The number of runs during which others used the machine: see `workbook.records.other_load`."""
        return sum(bool(other_load(record.telemetry, first=not record.process.position)) for record in self.records)

    @property
    def is_small(self) -> bool:
        """Whether these are records of round 0: pages of this machine show them, and nothing else uses them."""
        return bool(self.records) and self.scale == SMALL

    def passes(self) -> list[int]:
        """Return the pass numbers that have records."""
        return sorted({record.pass_number for record in self.records})

    def file(self, study: str = "") -> str:
        """Return the path of a file of these records, relative to the folder of all reports.

        `study` is the study that measured, by default this one: a configuration of several studies is measured once.
        """
        measured_by = study or self.study.id
        name = self.files.get(measured_by, f"{measured_by}.jsonl")
        return f"{self.profile.name}/records/{self.host_id}/{name}"

    def without_records(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return those of `trials` whose configuration has no record here (see `configuration`)."""
        recorded = set(map(configuration, self.by_trial))
        return [trial for trial in trials if configuration(trial) not in recorded]

    def nearest(self, trial: Trial) -> dict[str, tuple[Any, Any]]:
        """Return the fields in which a trial differs from the nearest recorded configuration: asked, recorded value."""
        asked = configuration(trial).as_dict()
        recorded = (configuration(other).as_dict() for other in self.by_trial)
        apart = [{name: (asked[name], of[name]) for name in asked if asked[name] != of[name]} for of in recorded]
        last = {"workload", "model", "framework"}  # of equally many fields, these say least
        return min(apart, key=lambda fields: (len(fields), not last.isdisjoint(fields)), default={})

    def lines_of(self, trial: Trial) -> dict[str, list[int]]:
        """Return the lines that hold a trial's records, by file (see `file`)."""
        lines: dict[str, list[int]] = {}
        for record in self.by_trial.get(trial, []):
            if (line := self.lines.get((record.key, record.pass_number))) is not None:
                lines.setdefault(self.file(record.study), []).append(line)
        return {file: sorted(of_file) for file, of_file in lines.items()}

    @property
    def device_name(self) -> str:
        """The recorded host's devices that the profile measures: `2 x NVIDIA H200`, or its processor."""
        gpus = measured_gpus(self.profile, self.host)
        return f"{len(gpus)} x {gpus[0]}" if gpus else str(self.host.get("cpu", "unknown CPU"))

    def machine(self, record: Record) -> str:
        """Return a text that is the same for records of equal hosts and framework versions.

        Names and cores are for people; the fingerprint decides. Without a clean commit the code may differ between
        hosts, so a host with such records equals no other. For example
        `NVIDIA H200, Intel Xeon Platinum 8481C, 16 cores, torch 2.11.0, hardware 3f2a8c0d91be`.
        """
        gpus = dict.fromkeys(measured_gpus(self.profile, self.host))
        cpu = " ".join(re.sub(r"\((R|TM)\)", " ", str(self.host.get("cpu", "unknown CPU"))).split())
        version = record.framework_version or "unknown"  # of Keras it names the packages
        framework = version if " " in version else f"{record.framework} {version}"
        own, compared = self._fingerprints
        hardware = f"hardware {record.fingerprint if record.fingerprint not in (None, own) else compared}"
        alone = [f"no clean commit, {self.host_id}"] if self.without_clean_commit else []
        return ", ".join([*gpus, cpu, f"{self.host.get('cpu_cores', 'unknown')} cores", framework, hardware, *alone])

    @cached_property
    def without_clean_commit(self) -> list[Record]:
        """The records that name no commit of the project's history, or one with uncommitted changes (`+`)."""
        named = [(record, record.versions.get("commit", "")) for record in self.records]
        unknown = {"", *self.host.get("unknown_commits", ())}
        return [of for of, commit in named if commit in unknown or commit.endswith("+")]

    @cached_property
    def _fingerprints(self) -> tuple[str, str]:
        """That of the host's description, and that by which it is compared with the report's other hosts.

        Descriptions have the processor's family since 27 November 2026. Beside an older description it does not count.
        """
        blind = self.store is not None and lacks_family(self.store.report)
        return fingerprint(self.host), fingerprint({**self.host, "cpu_family": None} if blind else self.host)

    def describe(self) -> str:
        """Return host, device, scale and passes as text for captions."""
        if not self:
            return "no records"
        gpus, cpu = measured_gpus(self.profile, self.host), self.host.get("cpu", "unknown CPU")
        used = max(record.devices_used for record in self.records)  # without idle devices
        count = f"{used} of {len(gpus)} x " if used < len(gpus) else f"{used} x " if used > 1 else ""
        device = f"{count}{gpus[0]}" if gpus else cpu
        if gpus and any(record.trial["device"] == "cpu" for record in self.records):
            device += f" beside {cpu}"
        nodes = {record.node for record in self.records} - {None}
        host = f"machine {self.host_id}" + (f" ({len(nodes)} equal nodes)" if len(nodes) > 1 else "")
        return f"{device}, {host}, scale {self.scale}, n = {self._counted()}"

    def _counted(self) -> str:
        """Return the number of passes per trial with a result: `3`, or `2 to 3` if trials differ."""
        counts = {len(passes) for trial in self.by_trial if (passes := self.ok(trial))} or {len(self.passes())}
        return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def measured_gpus(profile: Profile, host: dict[str, Any]) -> list[str]:
    """Return the names of the host's GPUs that the profile measures; [] for a CPU's profile, even beside GPUs."""
    if profile.device.kind == "cpu":
        return []
    return [gpu["name"] for gpu in host.get("gpus") or [] if profile.device.fits(gpu["name"])]


def _reading_order(trial: Trial) -> tuple[Any, ...]:
    """Return a sort key: workloads, then models in the order of the catalogue, then sizes."""
    from labkit.models.catalogue import MODELS

    place = list(MODELS).index(trial.model) if trial.model in MODELS else len(MODELS)
    return (trial.workload, place, trial.image_px, trial.batch, trial.precision, trial.engine, trial.key)
