"""Results as tidy tables: everything that is shown or judged comes from here.

    frame()     one row per trial, host and pass: what ran, where and when, how it ended, a column per metric
    reasons()   the rows of frame(): why a metric has no value
    blocks(), epochs(), queries(), hits(), labels(), series(), readings()   several values per record, in long form
    read_epochs(), reads()   epochs over images in files, and the bytes read over time
    kernels(), algorithms(), memory()   a traced step by its parts, in long form
    flags(), checks(), facts(name)   throttling, correctness checks and facts of workloads, in long form

Values are in SI units. A trial that failed is a row with its status and reason, and without values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from labkit.errors import UserError
from workbook.records import Epoch, Record, short_hash
from workbook.records.after_traces import launched_slowly
from workbook.records.scored import Accuracy
from workbook.records.series_store import SeriesStore
from workbook.registry import LABELS, METRICS
from workbook.results.columns import HOW_IT_ENDED, REASONS, RECORDS, WHAT_RAN, WHERE_AND_WHEN
from workbook.results.from_telemetry import of_record
from workbook.results.from_trace import algorithms_of, kernels_of, label, memory_of
from workbook.results.metrics import value_or_reason, why_missing
from workbook.results.missing import or_none
from workbook.results.study_records import StudyRecords, image_set, measured_gpus
from workbook.trials.trial import NO_DATA, OF_NETWORKS, WORDS, Trial
from workbook.words import mode_name

_OF_TRIAL = [field.name for field in fields(Trial)]
# Fields that mean something for a workload with a network only: a matrix product has no model and no batch.
_OF_NETWORKS = ("model", "image_px", "classes", "head", "batch", "optimizer", "learning_rate", "augment")
# Columns of texts that are never missing; they are texts in a table without rows too.
_WORDS = ("mode", *WORDS, *RECORDS, "machine", "image_set", "status", "reason")
_COUNTS = ("batch", "image_px", "classes")  # fields of networks with whole numbers, even if some are missing
# The columns of long tables that hold texts; all others hold numbers, even without rows.
_TEXTS = frozenset(
    {
        *("label", "text", "window", "metric", "kernel_class", "algorithm"),
        *("part", "source", "why", "phase", "check", "field"),
    }
)
COLUMNS = [*WHAT_RAN, *WHERE_AND_WHEN, *HOW_IT_ENDED, *METRICS]
# Columns of every long table even if they do not vary, so that a notebook can group by them on any device.
_ALWAYS = ("workload", "mode", "model", "image_px", "batch", "precision")

_CELLS: WeakKeyDictionary[StudyRecords, list[tuple[dict[str, Any], list[float | None]]]] = WeakKeyDictionary()

Rows = Iterable[tuple[Any, ...]]  # rows of a long table, with cells in the order of its columns


@dataclass(frozen=True)
class Results:
    """Recorded results of one or several studies; a notebook displays a short summary.

    `selected` are the records that a page shows, from one host per study. `others` returns those of the other hosts.
    `asked` are the trials of the current plan at their scale; empty if unknown.
    """

    selected: Sequence[StudyRecords]
    others: Callable[[], Sequence[StudyRecords]] = tuple
    asked: Sequence[Trial] = ()

    def frame(self, *, hosts: str = "selected") -> pd.DataFrame:
        """Return one row per trial, host and pass. `hosts` is "selected" (those that the pages show) or "all".

        >>> import workbook
        >>> frame = workbook.load("h200", "training").frame()
        >>> frame.query("model == 'resnet50'")[["batch", "mode", "pass_number", "images_per_s"]]  # doctest: +SKIP
        """
        if hosts not in ("selected", "all"):
            raise UserError(f"hosts must be 'selected' or 'all', not {hosts!r}.")
        return (self if hosts == "selected" else self.on_all_hosts)._selected.copy()

    def rows(self, trial: Trial) -> pd.DataFrame:
        """Return the rows of `frame()` of one configuration; it must have records."""
        places = self._places[trial]
        in_one_part = len(places) == places[-1] - places[0] + 1
        return self._selected.iloc[slice(places[0], places[-1] + 1) if in_one_part else places]

    def of_any_windows(self, trial: Trial) -> list[Trial]:
        """Return the trials with records that differ from `trial` at most in energy windows; the trial itself first."""
        return sorted(self._of_timing.get(replace(trial, energy_windows=0), []), key=lambda other: other != trial)

    @cached_property
    def on_all_hosts(self) -> Results:
        """The results with those of the other hosts, which are read once."""
        return Results([*self.selected, *self.others()])

    def reasons(self) -> pd.DataFrame:
        """Return `frame()` with the reason for each missing value of a metric, and an empty text for each value."""
        reasons = self.frame()
        for metric in METRICS:
            missing = reasons[metric].isna()
            values = pd.Series("", index=reasons.index, dtype=object)
            rows = [self._rows[place] for place in reasons.index[missing]]
            values[missing] = [why_missing(records, record, metric) for records, record in rows]
            reasons[metric] = values
        return reasons

    def blocks(self) -> pd.DataFrame:
        """Return one row per timed block: `block`, `start_s`, `steps`, `step_s`, `device_step_s`, `loss`."""
        return self._long(["block", "start_s", "steps", "step_s", "device_step_s", "loss"], _blocks)

    def epochs(self) -> pd.DataFrame:
        """Return a row per epoch of a training run: `epoch`, `train_s`, `train_loss`, `val_loss`, `top1`, `top5`, …"""

        def of(record: Record) -> Rows:
            epochs = record.epochs.epochs if record.epochs else []
            return ((number, *epoch.model_dump().values()) for number, epoch in enumerate(epochs, start=1))

        return self._long(["epoch", *Epoch.model_fields], of)

    def read_epochs(self) -> pd.DataFrame:
        """Return a row per epoch over images in files: `epoch`, `seconds`, and its counts as `ReadEpoch` has them.

        Counts are of the whole epoch. `file_bytes` is the size of the set.
        """
        counts = ["images", "waited_s", "read_bytes", "timed_read_bytes", "asked_bytes", "written_bytes", "cpu_s"]
        counts += ["minor_faults", "major_faults"]

        def of(record: Record) -> Rows:
            for number, epoch in enumerate(record.reads.epochs if record.reads else [], start=1):
                assert record.reads is not None
                yield number, epoch.seconds, record.reads.file_bytes, *(getattr(epoch, name) for name in counts)

        return self._long(["epoch", "seconds", "file_bytes", *counts], of)

    def reads(self) -> pd.DataFrame:
        """Return a row per reading of the bytes read from storage: `epoch`, `time_s` in it, `read_until_bytes`."""

        def of(record: Record) -> Rows:
            for number, epoch in enumerate(record.reads.epochs if record.reads else [], start=1):
                for time_s, count in zip(epoch.read_at_s, epoch.read_until_bytes, strict=True):
                    yield number, time_s, count

        return self._long(["epoch", "time_s", "read_until_bytes"], of)

    def queries(self) -> pd.DataFrame:
        """Return one row per query of an inference trial: `query`, `latency_of_query_s`."""

        def of(record: Record) -> Rows:
            queries = record.blocks.queries if record.blocks and not launched_slowly(record) else None
            return ((number, ns / 1e9) for number, ns in enumerate(queries.latency_ns if queries else []))

        return self._long(["query", "latency_of_query_s"], of)

    def hits(self) -> pd.DataFrame:
        """Return one row per scored image: `image`, and whether it was classified correctly (`top1`, `top5`)."""
        scored = [record.blocks.scored if record.blocks else None for _, record in self._rows]
        answers = [scores for scores in scored if scores is not None]
        keys = self._selected[self._keys].astype(dict.fromkeys(self._keys, "category"))
        images = [scores.images if scores else 0 for scores in scored]
        hits = keys.loc[np.repeat(keys.index, images)].reset_index(drop=True)
        hits["image"] = np.concatenate([np.arange(scores.images) for scores in answers]) if answers else []
        accuracy: Accuracy
        for accuracy in ("top1", "top5"):
            hits[accuracy] = np.concatenate([scores.hits(accuracy) for scores in answers]) if answers else []
        return hits

    def labels(self) -> pd.DataFrame:
        """Return one row per label of a record: `label` (such as `convolution_kernel`) and `text`."""

        def of(record: Record) -> Rows:
            return ((name, text) for name in LABELS if (text := or_none(label, record, name)) is not None)

        return self._long(["label", "text"], of)

    def series(self) -> pd.DataFrame:
        """Return telemetry, a row per change: `source`, `metric`, `time_s` from the first timed block, `value`.

        Raise UserError for a file that cannot be read.
        """
        parts, measured_by = [], pd.Series([record.study for _, record in self._rows], index=self._selected.index)
        slowed = pd.Series([bool(launched_slowly(record)) for _, record in self._rows], index=self._selected.index)
        for records in self.selected:
            if records.host_id is None or records.store is None:
                continue
            for study in dict.fromkeys(record.study for record in records.records):
                try:
                    kept = SeriesStore(records.store.report, records.host_id, study).read()
                except OSError as error:
                    raise UserError(
                        f"{error}, or delete the file: then `series()` has no telemetry of {study}."
                    ) from error
                kept = kept[kept["scale"] == records.scale].rename(columns={"pass": "pass_number", "t_s": "time_s"})
                of_study = (self._selected["study"] == records.study.id) & (measured_by == study) & ~slowed
                keys = self._selected[of_study][[*self._keys, "key_hash"]]
                parts.append(keys.merge(kept, left_on=["key_hash", "pass_number"], right_on=["key", "pass_number"]))
        empty = pd.DataFrame(columns=[*self._keys, "source", "metric", "time_s", "value"])
        whole = pd.concat(parts, ignore_index=True) if parts else empty
        return whole[[*self._keys, "source", "metric", "time_s", "value"]]

    def readings(self) -> pd.DataFrame:
        """Return one row per metric of telemetry and window: `window`, `metric`, `mean`, `lowest`, `highest`.

        Windows are `idle_before`, `warmup`, `timed`, `after`, and `polled`: the timed part read once a second.
        """
        return self._long(["window", "metric", "mean", "lowest", "highest"], _readings)

    def kernels(self) -> pd.DataFrame:
        """Return one row per class of kernels (CPU: of operators): `kernel_class`, `seconds` and `count` in a step."""
        columns = ["kernel_class", "seconds", "count"]
        return self._long(columns, lambda record: ((kind, *sums) for kind, sums in kernels_of(record).items()))

    def algorithms(self) -> pd.DataFrame:
        """Return one row per algorithm of a step's convolutions: `algorithm`, `seconds` and `count` of its kernels."""
        columns = ["algorithm", "seconds", "count"]
        return self._long(columns, lambda record: ((name, *sums) for name, sums in algorithms_of(record).items()))

    def memory(self) -> pd.DataFrame:
        """Return one row per part of a step's memory: `part` (`weights`, `activations`, …), `held_bytes`."""
        return self._long(["part", "held_bytes"], lambda record: memory_of(record).items())

    def flags(self) -> pd.DataFrame:
        """Return one row per timed block that ran throttled or below its clock: `block`, `source`, `why`."""

        def of(record: Record) -> Rows:
            flagged = record.telemetry.flagged if record.telemetry else []
            return ((block, flag.source, flag.why) for flag in flagged for block in flag.blocks)

        return self._long(["block", "source", "why"], of)

    def checks(self) -> pd.DataFrame:
        """Return one row per correctness check before timing: `check`, its `difference` and its `tolerance`."""
        return self._long(["check", "difference", "tolerance"], checks_of)

    def facts(self, name: str) -> pd.DataFrame:
        """Return one row per record and field of a fact, such as "layers" or "weights": `field`, `value`.

        Nested fields have dotted names (`Convolution.i8`).
        """

        def of(record: Record) -> Rows:
            fact = record.facts.get(name, {})
            return _leaves(fact if isinstance(fact, dict) else {name: fact})

        return self._long(["field", "value"], of)

    @cached_property
    def _rows(self) -> list[tuple[StudyRecords, Record]]:
        return [(records, record) for records in self.selected for record in _in_order(records)]

    @cached_property
    def _places(self) -> dict[Trial, list[int]]:
        """Trial -> the places of its records in `_rows`."""
        places: dict[Trial, list[int]] = {}
        for place, (_, record) in enumerate(self._rows):
            places.setdefault(record.as_trial, []).append(place)
        return places

    @cached_property
    def _of_timing(self) -> dict[Trial, list[Trial]]:
        """Trial without energy windows -> the trials with records that it stands for."""
        alike: dict[Trial, list[Trial]] = {}
        for trial in self._places:
            alike.setdefault(replace(trial, energy_windows=0), []).append(trial)
        return alike

    @cached_property
    def _selected(self) -> pd.DataFrame:
        return _frame(self.selected).copy()  # in one piece, so that rows are chosen and columns are added fast

    @property
    def _keys(self) -> list[str]:
        """The columns that identify a record in a long table: what ran (if it varies), its origin and its pass."""
        frame = self._selected
        varying = [name for name in WHAT_RAN if name in _ALWAYS or frame[name].nunique(dropna=False) > 1]
        return [*varying, *RECORDS, "pass_number", "record"]

    def _long(self, columns: list[str], of: Callable[[Record], Rows]) -> pd.DataFrame:
        """Return a table of the rows that `of` gives for each record, with the columns that identify the record."""
        keyed = zip(self._selected[self._keys].to_dict("records"), self._rows, strict=True)
        rows = [{**row, **dict(zip(columns, cells, strict=True))} for row, (_, record) in keyed for cells in of(record)]
        if rows:
            return pd.DataFrame(rows)
        numbers = dict.fromkeys((name for name in columns if name not in _TEXTS), float)
        return pd.DataFrame(columns=[*self._keys, *columns]).astype(numbers)

    def __repr__(self) -> str:
        lines = [
            f"{part.study.id}: {part.describe()}, {len(part.by_trial)} configurations, "
            + f"{len(part.failures())} failed runs"
            + (f", {part.how_measured}" if part.how_measured else "")
            for part in self.selected
        ]
        return "\n".join([*lines, "frame() gives every value as a DataFrame."])


def _blocks(record: Record) -> Rows:
    """Yield the timed blocks of a record as rows of `Results.blocks`."""
    if (blocks := record.blocks) is None:
        return
    steps, is_in_time = blocks.steps_per_block, not launched_slowly(record)
    for number, host_s in enumerate(blocks.host_s):
        start_s = blocks.at_s[number] if blocks.at_s else None
        device_s = blocks.device_s[number] / steps if blocks.device_s and is_in_time else None
        step_s = host_s / steps if is_in_time else None
        yield number, start_s, steps, step_s, device_s, blocks.loss[number] if blocks.loss else None


def _readings(record: Record) -> Rows:
    """Yield each metric of telemetry in each window of a record as rows of `Results.readings`."""
    if (telemetry := record.telemetry) is None:
        return
    windows = {name: window.sources for name, window in telemetry.windows.items()} | {"polled": telemetry.polled}
    withdrawn = ("timed", "polled") if launched_slowly(record) else ()
    for window, sources in windows.items():
        if window in withdrawn:
            continue
        for metric in dict.fromkeys(name for metrics in sources.values() for name in metrics):
            if (statistics := of_record(record, metric, window)) is not None:
                yield window, metric, *statistics


def checks_of(record: Record) -> Rows:
    """Yield the correctness checks of a record as rows of `Results.checks`."""
    gate = record.facts.get("gate")
    gate = gate if isinstance(gate, dict) else {}
    for name, difference in gate.items():
        check = name.removesuffix("_difference")
        if check != name and f"{check}_tolerance" in gate:
            yield check, difference, gate[f"{check}_tolerance"]


def _leaves(fact: dict[str, Any], path: str = "") -> Rows:
    """Yield the dotted name and the value of each field of a fact."""
    for name, value in fact.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _in_order(records: StudyRecords) -> list[Record]:
    """Return a study's records: trials in reading order, passes ascending."""
    return [record for passes in records.by_trial.values() for record in passes]


def _frame(groups: Sequence[StudyRecords]) -> pd.DataFrame:
    cells = [row for records in groups for row in _cells(records)]
    about = [name for name in COLUMNS if name not in METRICS]
    texts = pd.DataFrame([row for row, _ in cells], columns=[*about, "key_hash"])
    texts = texts.astype({**dict.fromkeys(_COUNTS, "Int64"), **dict.fromkeys(_WORDS, str), REASONS: "category"})
    values = np.array([numbers for _, numbers in cells], dtype=float)
    numbers = pd.DataFrame(values.reshape(len(cells), len(METRICS)), columns=list(METRICS))
    return pd.concat([texts[about], numbers, texts["key_hash"]], axis=1)


def _cells(records: StudyRecords) -> list[tuple[dict[str, Any], list[float | None]]]:
    """Return the texts and the metrics of each record, made once: claims, files and figures have tables of the same."""
    if records not in _CELLS:
        _CELLS[records] = [_row_and_metrics(records, record) for record in _in_order(records)]
    return _CELLS[records]


def _row_and_metrics(records: StudyRecords, record: Record) -> tuple[dict[str, Any], list[float | None]]:
    cells = {metric: value_or_reason(records, record, metric) for metric in METRICS}
    reasons = {metric: " ".join(reason.split()) for metric, (_, reason) in cells.items() if record.status == "ok"}
    text = "\n".join(f"{metric}: {reason}" for metric, reason in reasons.items() if reason)
    return _row(records, record) | {REASONS: text}, [value for value, _ in cells.values()]


def _row(records: StudyRecords, record: Record) -> dict[str, Any]:
    trial = record.as_trial
    gpus = measured_gpus(records.profile, records.host)
    line = records.lines.get((record.key, record.pass_number))
    return {
        "mode": mode_name(trial),
        **{name: _field(trial, name) for name in _OF_TRIAL},
        "profile": records.profile.name,
        "study": records.study.id,
        "host": record.host,
        "device_name": gpus[0] if gpus and trial.device == "cuda" else records.host.get("cpu"),
        "machine": records.machine(record),
        "pass_number": record.pass_number,
        "planned_passes": record.planned.passes.get(short_hash(record.key), record.pass_number),
        "process": record.process.id,
        "protocol": record.protocol,
        "scale": record.scale,
        "started_at": record.started_at,
        "commit": record.versions.get("commit", "unknown"),
        "record": f"{records.file(record.study)}:{line}",
        "image_set": image_set(record),
        "status": record.status,
        "reason": record.dated_reason,
        "key_hash": short_hash(record.key),
    }


def _field(trial: Trial, name: str) -> Any:
    """Return a field of a trial; None for a field of networks in a trial of a ceiling or of an idle device."""
    has_network = trial.workload in OF_NETWORKS or trial.data != NO_DATA
    return getattr(trial, name) if has_network or name not in _OF_NETWORKS else None
