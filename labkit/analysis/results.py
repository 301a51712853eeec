"""The records that a page shows, as values by trial and pass, and as one tidy table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import pandas as pd

from labkit.analysis import traced
from labkit.profile import Profile
from labkit.records import Blocks, Epoch, Record
from labkit.registry import Study, find_metric
from labkit.scored import Accuracy
from labkit.statistics import Interval, log_interval
from labkit.trial import Trial

METRICS_OF_RESULT = ("images_per_s", "flop_per_s", "bytes_per_s", "step_s", "epoch_s", "loss", "top1", "top5")


@dataclass(frozen=True)
class Results:
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

    def frame(self) -> pd.DataFrame:
        """One row a trial and pass: the trial's fields, status, reason, metrics in SI units."""
        rows = []
        for record in self.records:
            metrics = {name: value_of(record, name) for name in METRICS_OF_RESULT}
            rows.append(
                {
                    "study": record.study,
                    "scale": record.scale,
                    "host": record.host,
                    "pass": record.pass_number,
                    **record.trial,
                    "status": record.status,
                    "reason": record.reason,
                    **metrics,
                    "memory_bytes": record.facts.get("memory_bytes"),
                    "started_at": record.started_at,
                    "wall_s": record.wall_s,
                }
            )
        return pd.DataFrame(rows)

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


def value_of(record: Record, metric: str) -> float | None:
    """One metric of one record in SI units; None when it has none."""
    if record.result is None:
        return None
    derive = (_OF_BLOCKS if record.blocks else _OF_EPOCHS).get(metric)
    if derive:
        return derive(record)
    if metric in PREPARATIONS:
        return record.phases_s.get(PREPARATIONS[metric])
    value = record.facts.get(metric)
    return float(value) if isinstance(value, (int, float)) else None


# What an engine does once, before a trial is timed: the worker times each apart.
PREPARATIONS = {"trace_s": "trace", "compile_s": "compile", "capture_s": "capture"}
BEFORE_PREDICTING = ("convert", "calibrate", "compile", "capture")


def compiler_state(record: Record) -> Literal["cold", "partly", "cached"] | None:
    """Whether a compiler found a trial's graphs on the disk: none, some or all; None where the record does not say."""
    graphs = record.facts.get("compiled_regions")
    if not isinstance(graphs, dict):
        return None
    if not graphs["from the cache"]:
        return "cold"
    return "partly" if graphs["compiled"] else "cached"


def _epoch_s(record: Record) -> float | None:
    """Seconds that the training images take once, at the throughput of the timed blocks."""
    rate, images = value_of(record, "images_per_s"), record.facts.get("train_images")
    return images / rate if rate and images else None


def _run_s(record: Record) -> float | None:
    """Seconds until each job of the trial has seen the training images once, at the throughput of the timed blocks."""
    seconds = _epoch_s(record)
    return None if seconds is None else seconds * int(record.facts.get("jobs", 1))


PERCENTILES = {"latency_s": 0.5, "latency_p90_s": 0.9, "latency_p99_s": 0.99, "latency_p999_s": 0.999}
BEYOND = 2  # a percentile with fewer queries beyond it than this is the luck of the slowest


def _latency_s(share: float) -> Callable[[Record], float | None]:
    """The latency that this share of the queries kept (nearest rank); None of too few queries."""

    def of(record: Record) -> float | None:
        queries = _blocks(record).queries
        if queries is None:
            return None
        ordered = sorted(queries.latency_ns)
        rank = math.ceil(round(share * len(ordered), 6))
        return ordered[rank - 1] / 1e9 if len(ordered) - rank >= BEYOND else None

    return of


def _first_prediction_s(record: Record) -> float | None:
    """From no model to the first answer: building, calibrating, compiling, capturing, and the first step itself."""
    build_s, first_s = (record.facts.get(name) for name in ("build_s", "first_step_s"))
    if record.trial["workload"] != "infer" or build_s is None or first_s is None:
        return None
    return float(build_s + first_s + sum(record.phases_s.get(name, 0.0) for name in BEFORE_PREDICTING))


def first_step_s(record: Record) -> float | None:
    """Seconds until the first step of a built network had ended: tracing, compiling and capturing it, and the step.

    As the workload says itself (`first_step_s` among its facts); else the phases that the worker timed, of compiled
    PyTorch without the steps that its gate takes afterwards.
    """
    said = record.facts.get("first_step_s")
    if said is not None:
        return float(said)
    prepared = preparing_s(record)
    if prepared and record.framework == "torch":  # its first steps are among what compiles and captures them
        return prepared
    step_s = record.phases_s.get("first_step")
    return None if step_s is None else prepared + step_s


def preparing_s(record: Record) -> float:
    """Seconds of tracing, compiling and capturing, as far as the worker timed them apart; 0 where nothing was."""
    return sum(record.phases_s.get(name, 0.0) for name in PREPARATIONS.values())


def _time_to_first_step_s(record: Record) -> float | None:
    """Of training: from no network to the end of its first step, after the process has its framework."""
    if record.trial["workload"] != "train":  # the first prediction is another number
        return None
    build_s, first_s = record.facts.get("build_s", record.phases_s.get("build")), first_step_s(record)
    return None if build_s is None or first_s is None else float(build_s) + first_s


def _framework_peak_bytes(record: Record) -> float | None:
    """What the framework's own counter of a GPU's memory came to; a CPU has none."""
    if record.trial["device"] != "cuda":
        return None
    said = record.facts.get("framework_peak_bytes", record.facts.get("memory_bytes"))
    return None if said is None else float(said)


_OF_BLOCKS: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: _blocks(record).rate(_blocks(record).images_per_step),
    "flop_per_s": lambda record: _blocks(record).rate(_blocks(record).flop_per_step),
    "bytes_per_s": lambda record: _blocks(record).rate(_blocks(record).bytes_per_step),
    "step_s": lambda record: _blocks(record).step_s,
    "flop_per_step": lambda record: _as_float(_blocks(record).flop_per_step),
    "epoch_s": _epoch_s,
    "run_s": _run_s,
    "first_prediction_s": _first_prediction_s,
    "time_to_first_step_s": _time_to_first_step_s,
    "framework_peak_bytes": _framework_peak_bytes,
    "top1": lambda record: _share(record, "top1"),
    "top5": lambda record: _share(record, "top5"),
    **{name: _latency_s(share) for name, share in PERCENTILES.items()},
    **{name: partial(traced.value, metric=name) for name in traced.METRICS},
}


def _as_float(count: int | None) -> float | None:
    return None if count is None else float(count)


def _share(record: Record, accuracy: Accuracy) -> float | None:
    """The share of the scored images that were classified rightly; else what the workload says of itself."""
    scored = _blocks(record).scored
    return scored.share(accuracy) if scored else record.facts.get(accuracy)


def _blocks(record: Record) -> Blocks:
    assert record.blocks is not None
    return record.blocks


def _epochs(record: Record) -> list[Epoch]:
    assert record.epochs is not None
    return record.epochs.epochs


def epochs_to_target(record: Record) -> float | None:
    """Epochs until the validation accuracy reached the trial's target, between two epochs on a straight line.

    Before the first epoch the accuracy is chance. None where no target was set or it was not reached.
    """
    target = float(record.trial.get("target_top1", 0.0))
    if not target or record.epochs is None:
        return None
    before = 1 / int(record.trial["classes"])
    for number, epoch in enumerate(_epochs(record), start=1):
        if epoch.top1 >= target:
            return number - (epoch.top1 - target) / (epoch.top1 - before) if target > before else float(number)
        before = epoch.top1
    return None


# Of a training run: sums over all of it, loss and accuracy after its last epoch.
_OF_EPOCHS: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: sum(e.images for e in _epochs(record)) / sum(e.train_s for e in _epochs(record)),
    "step_s": lambda record: sum(e.train_s for e in _epochs(record)) / sum(e.steps for e in _epochs(record)),
    "epoch_s": lambda record: sum(e.train_s for e in _epochs(record)) / len(_epochs(record)),
    "run_s": lambda record: sum(e.train_s + e.val_s for e in _epochs(record)),
    "epochs_to_target": epochs_to_target,
    "loss": lambda record: _epochs(record)[-1].train_loss,
    "top1": lambda record: _epochs(record)[-1].top1,
    "top5": lambda record: _epochs(record)[-1].top5,
}


def without_data_identity(trial: Trial) -> Trial:
    """The trial whatever the content of its data: to match trials across hosts and plans."""
    return replace(trial, data_checksum="")


def without_data(trial: Trial) -> Trial:
    """The trial whatever images it has: a plan made without them knows neither them nor how many it scores."""
    blank = Trial()
    found = replace(trial, data=blank.data, data_checksum=blank.data_checksum, classes=blank.classes)
    return replace(found, image_px=blank.image_px, batch=blank.batch, scored=1) if trial.scored else found


def _reading_order(trial: Trial) -> tuple[Any, ...]:
    """Models as the catalogue has them, then sizes."""
    from labkit.models.catalogue import MODELS

    place = list(MODELS).index(trial.model) if trial.model in MODELS else len(MODELS)
    return (trial.workload, place, trial.image_px, trial.batch, trial.precision, trial.engine, trial.key)
