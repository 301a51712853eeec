"""The records of one study and host that belong together, as a page shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from labkit.hardware.profile import Profile
from labkit.records import Record
from labkit.records.store import Store
from labkit.registry import Study, find_metric
from labkit.results.from_result import value_of
from labkit.statistics import Interval, log_interval
from labkit.trial import Trial


@dataclass(frozen=True)
class StudyRecords:
    """The latest records of one study, host and scale that belong together. Empty when there are none."""

    study: Study
    profile: Profile
    scale: str
    host_id: str | None
    host: dict[str, Any]
    records: list[Record]
    measured_here: bool = False
    lines: dict[tuple[str, int], int] = field(default_factory=dict)  # (key, pass) -> line in the file of records
    file_name: str = ""  # of the file of records, which may be packed
    store: Store | None = None  # where they were read
    asked: tuple[Trial, ...] = ()  # by today's plan at this scale; () where nobody said

    def __bool__(self) -> bool:
        return bool(self.records)

    @cached_property
    def by_trial(self) -> dict[Trial, list[Record]]:
        """Records by trial, trials in a readable order, passes ascending."""
        grouped: dict[Trial, list[Record]] = {}
        for record in sorted(self.records, key=lambda record: record.pass_number):
            grouped.setdefault(record.as_trial, []).append(record)
        return dict(sorted(grouped.items(), key=lambda item: _reading_order(item[0])))

    def trials(self, **fields: Any) -> list[Trial]:
        """The trials whose fields have the given values."""
        return [trial for trial in self.by_trial if all(getattr(trial, name) == fields[name] for name in fields)]

    def ok(self, trial: Trial) -> list[Record]:
        """The passes of a trial that have a result."""
        return [record for record in self.by_trial.get(trial, []) if record.status == "ok" and record.result]

    def values(self, trial: Trial, metric: str) -> dict[int, float]:
        """Pass number -> value of a metric (SI units); passes without it are left out."""
        found = {record.pass_number: value_of(record, find_metric(metric).name) for record in self.ok(trial)}
        return {number: value for number, value in found.items() if value is not None}

    def interval(self, trial: Trial, metric: str) -> Interval | None:
        """Geometric mean over passes with its 95 % interval; None without any value."""
        values = list(self.values(trial, metric).values())
        return log_interval(values) if values else None

    def fact(self, trial: Trial, name: str) -> Any:
        """What the workload said of itself (parameters, FLOP, …); None when no pass has it."""
        return next((record.facts[name] for record in self.ok(trial) if name in record.facts), None)

    def failures(self) -> list[Record]:
        """Records without a result."""
        return [record for record in self.records if record.status != "ok"]

    def ceiling(self, workload: str, metric: str, *, device: str) -> Interval | None:
        """A device's measured ceiling: arithmetic (`matmul`, `flop_per_s`) or memory (`memory_copy`, `bytes_per_s`)."""
        trials = self.trials(workload=workload, precision="fp32", device=device)
        found = [self.interval(trial, metric) for trial in trials]
        return next((interval for interval in found if interval), None)

    def passes(self) -> list[int]:
        """The pass numbers that have records."""
        return sorted({record.pass_number for record in self.records})

    @property
    def boards_used(self) -> int:
        """How many devices these trials used at most: not those that stood idle beside them."""
        return max((record.devices_used for record in self.records), default=1)

    @property
    def power_limit_w(self) -> float | None:
        """What those boards may draw together; None where no limit is stated."""
        limit = self.profile.device.board_power_w
        return None if limit is None else limit.value * self.boards_used

    def file(self) -> str:
        """The file of these records, relative to the folder of all reports."""
        return f"{self.profile.name}/records/{self.host_id}/{self.file_name or self.study.id + '.jsonl'}"

    def lines_of(self, trial: Trial) -> list[int]:
        """The lines of that file that hold a trial's records."""
        found = [self.lines.get((record.key, record.pass_number)) for record in self.by_trial.get(trial, [])]
        return sorted(line for line in found if line is not None)

    @property
    def again(self) -> str:
        """The command that makes this study's page, and every figure on it, again from the records."""
        return f"make render HW={self.profile.name} STUDY={self.study.name}"

    @property
    def device_name(self) -> str:
        """What the recorded host has of the devices that the profile measures: `2 x NVIDIA H200`, or its processor."""
        gpus = measured_gpus(self.profile, self.host)
        return f"{len(gpus)} x {gpus[0]}" if gpus else str(self.host.get("cpu", "unknown CPU"))

    def describe(self) -> str:
        """Host, device, scale and passes, for captions."""
        if not self:
            return "no records"
        gpus, cpu = measured_gpus(self.profile, self.host), self.host.get("cpu", "unknown CPU")
        used = self.boards_used
        count = f"{used} of {len(gpus)} x " if used < len(gpus) else f"{used} x " if used > 1 else ""
        device = f"{count}{gpus[0]}" if gpus else cpu
        if gpus and any(record.trial["device"] == "cpu" for record in self.records):
            device += f" beside {cpu}"
        return f"{device}, host {self.host_id}, scale {self.scale}, n = {self._counted()}"

    def _counted(self) -> str:
        """How many passes there are of a trial with a result: `3`, or `2 to 3` where some were not measured in all."""
        counts = {len(found) for trial in self.by_trial if (found := self.ok(trial))} or {len(self.passes())}
        return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def measured_gpus(profile: Profile, host: dict[str, Any]) -> list[str]:
    """Names of the recorded host's devices that the profile measures; [] for a CPU, whatever GPUs stand beside it."""
    if profile.device.kind == "cpu":
        return []
    return [gpu["name"] for gpu in host.get("gpus") or [] if re.search(profile.device.pattern, gpu["name"])]


def without_data_identity(trial: Trial) -> Trial:
    """The trial whatever the content of its data: to match trials across hosts and plans."""
    return replace(trial, data_checksum="")


def without_data(trial: Trial) -> Trial:
    """The trial whatever images it has: a plan made without them knows neither them nor how many it scores."""
    blank = Trial()
    found = replace(trial, data=blank.data, data_checksum=blank.data_checksum, classes=blank.classes, counted=False)
    return replace(found, image_px=blank.image_px, batch=blank.batch, scored=1) if trial.scored else found


def _reading_order(trial: Trial) -> tuple[Any, ...]:
    """Models as the catalogue has them, then sizes."""
    from labkit.models.catalogue import MODELS

    place = list(MODELS).index(trial.model) if trial.model in MODELS else len(MODELS)
    return (trial.workload, place, trial.image_px, trial.batch, trial.precision, trial.engine, trial.key)
