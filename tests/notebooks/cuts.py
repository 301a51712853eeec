"""Record sets that a report passes through, cut from the committed records of a profile.

Each cut takes the records of the machine that a study's page shows, and returns those that it would have shown at
another moment, on a machine with other sensors, or beside other machines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.telemetry.summary import Metrics, Statistic, Telemetry
from tests.committed import committed_reports
from workbook.records import Blocks, Epochs, Record
from workbook.records.record import Reads
from workbook.records.scored import Scored
from workbook.records.selection import host_to_show
from workbook.records.store import Store
from workbook.records.traced import Traced, Untraced
from workbook.registry import STUDIES
from workbook.trials.trial import OF_NETWORKS
from workbook.words import mode_name

Records = list[Record]
Cut = Callable[[Records], Records]


# ---- moments of a report --------------------------------------------------------------------------------------------


def first_rounds(count: int) -> Cut:
    return lambda records: [record for record in records if record.pass_number <= count]


def half_of_round_1(records: Records) -> Records:
    first = first_rounds(1)(records)
    return first[: (len(first) + 1) // 2]


def first_record(records: Records) -> Records:
    return records[:1]


def round_1_until_study_06(records: Records) -> Records:
    """Return the records of a report whose first round has just measured a half of study 06."""
    study = records[0].study[:2]
    return first_rounds(1)(records) if study < "06" else half_of_round_1(records) if study == "06" else []


# ---- several machines -----------------------------------------------------------------------------------------------


def on_another(records: Iterable[Record], machine: str, **changed: Any) -> Records:
    """Return the records as those of an equal machine, whose id begins with the letter `machine`."""
    return [record.model_copy(update={"host": machine + record.host[1:], **changed}) for record in records]


def on_equal_machines(records: Records) -> Records:
    return [*records, *on_another(records, "x"), *on_another(records, "y")]


def beside_older_machines(records: Records) -> Records:
    """Return the first run of this machine, beside all runs of an equal one and of one with an older protocol."""
    return [*first_rounds(1)(records), *on_another(records, "x"), *on_another(records, "y", protocol=2)]


# ---- machines with other sensors ------------------------------------------------------------------------------------

OLD_SENSORS = ("power_w", "power_smi_w", "utilisation", "memory_utilisation", "memory_bytes", "sm_clock_hz")
NO_COUNTERS = {"*": "no GPM: the GPU is older than Hopper", "energy_j": "the driver says: Not Supported"}
NO_PROFILER = "the profiler saw no kernels: CUPTI does not know this GPU"
NO_METER = "the driver says: Not Supported"
METERED = ("power_w", "power_smi_w")
OF_SHORT_TRACES = ("busy_step_s", "kernels_per_step", "kernel_step_s", "kernel_rules")


def without_traces(record: Record) -> Record:
    facts = {name: value for name, value in record.facts.items() if name not in OF_SHORT_TRACES}
    update: dict[str, Any] = {"facts": {**facts, "untraced": NO_PROFILER}}
    if record.blocks and record.blocks.trace:
        update["result"] = record.blocks.model_copy(update={"trace": Untraced(reason=NO_PROFILER)})
    return record.model_copy(update=update)


def _sensed(record: Record, of_source: Callable[[str, Metrics], Metrics], **changed: Any) -> Record:
    """Return a record whose telemetry has the metrics that `of_source` returns, and the `changed` fields."""
    seen = record.telemetry
    if seen is None:
        return record

    def of_all(sources: dict[str, Metrics]) -> dict[str, Metrics]:
        return {source: of_source(source, metrics) for source, metrics in sources.items()}

    windows = {
        name: window.model_copy(update={"sources": of_all(window.sources)}) for name, window in seen.windows.items()
    }
    update = {"windows": windows, "polled": of_all(seen.polled), **changed}
    return record.model_copy(update={"telemetry": seen.model_copy(update=update)})


def _missing(record: Record, source: str, reasons: dict[str, str]) -> dict[str, dict[str, str]]:
    return {**(record.telemetry.missing if record.telemetry else {}), source: reasons}


def of_old_gpu(record: Record) -> Record:
    """Return the record as a GPU of 2013 would give it: no GPM, no energy counter, no trace."""

    def old(source: str, metrics: Metrics) -> Metrics:
        return {name: value for name, value in metrics.items() if source[:3] != "gpu" or name in OLD_SENSORS}

    missing = _missing(record, "gpu0", NO_COUNTERS)
    return _sensed(without_traces(record), old, missing=missing, energy=[], energy_method={})


def without_energy(record: Record) -> Record:
    def unmetered(_: str, metrics: Metrics) -> Metrics:
        return {name: value for name, value in metrics.items() if name not in METERED}

    missing = _missing(record, "gpu0", dict.fromkeys((*METERED, "energy_j"), NO_METER))
    return _sensed(record, unmetered, missing=missing, energy=[], energy_method={})


def without_sensors(record: Record) -> Record:
    lost = Telemetry(status="lost", reason="the process of the sensors was killed")
    return record.model_copy(update={"telemetry": record.telemetry and lost})


def with_zeros(record: Record) -> Record:
    """Return the record with 0 from all sensors, counters and accuracies, and with losses that are not finite."""

    def zero(_: str, metrics: Metrics) -> Metrics:
        return {name: Statistic(mean=0, low=0, high=0, n=value.n) for name, value in metrics.items()}

    energy = [
        window.model_copy(update={"energy_j": dict.fromkeys(window.energy_j, 0.0)})
        for window in (record.telemetry.energy if record.telemetry else [])
    ]
    facts = {name: 0.0 if name in ("cpu_cores_used", "busy_step_s") else fact for name, fact in record.facts.items()}
    sensed = _sensed(record, zero, energy=energy)
    return sensed.model_copy(update={"facts": facts, "result": _zeroed(record.result)})


def _zeroed(result: Any) -> Any:
    if isinstance(result, Blocks):
        nothing = {"loss": [None] * len(result.loss), "warmup_loss": [None] * len(result.warmup_loss)}
        if isinstance(result.trace, Traced):
            gaps = ("launch_gap_s", "queue_gap_s", "edge_gap_s", "exchange_s", "exposed_exchange_s", "copy_s")
            nothing["trace"] = result.trace.model_copy(update=dict.fromkeys(gaps, 0.0))
        if result.scored:
            wrong = np.zeros(result.scored.images, dtype=np.bool_)
            hashes = {name: getattr(result.scored, name) for name in ("weights_sha256", "images_sha256")}
            nothing["scored"] = Scored.of(wrong, wrong, **hashes)
        return result.model_copy(update=nothing)
    if isinstance(result, Epochs):
        untaught = {"train_loss": None, "val_loss": None, "top1": 0.0, "top5": 0.0}
        return result.model_copy(update={"epochs": [epoch.model_copy(update=untaught) for epoch in result.epochs]})
    if isinstance(result, Reads):
        counts = ("read_bytes", "asked_bytes", "written_bytes", "received_bytes", "sent_bytes", "cpu_s")
        counts += ("minor_faults", "major_faults")
        unread = {**dict.fromkeys(counts, 0), "waited_s": 0.0, "read_at_s": [], "read_until_bytes": []}
        return result.model_copy(update={"epochs": [epoch.model_copy(update=unread) for epoch in result.epochs]})
    return result


def of_each(change: Callable[[Record], Record], rounds: int = 2) -> Cut:
    return lambda records: [change(record) for record in first_rounds(rounds)(records)]


# ---- some configurations only ---------------------------------------------------------------------------------------

FAILURE = {"status": "crashed", "reason": "worker died", "result": None, "telemetry": None, "facts": {}}


def is_baseline(record: Record) -> bool:
    return mode_name(record.as_trial) == "strict FP32" and record.as_trial.workload in OF_NETWORKS


def failing(chosen: Callable[[Record], bool]) -> Cut:
    def failed(record: Record) -> Record:
        return record.model_copy(update=FAILURE) if chosen(record) else record

    return of_each(failed)


def one_trial(*, baseline: bool) -> Cut:
    def only(records: Records) -> Records:
        ranked = sorted(records, key=lambda record: (is_baseline(record) != baseline, not _is_timed(record)))
        return [record for record in records if record.key == ranked[0].key]

    return only


def _is_timed(record: Record) -> bool:
    return record.as_trial.workload in OF_NETWORKS and not record.as_trial.epochs


def one_value(field: str) -> Cut:
    """Return the records of the last value of a trial's field that the study has measured, and of its ceilings."""

    def only(records: Records) -> Records:
        timed = [record for record in records if _is_timed(record)] or records
        last = max((getattr(record.as_trial, field) for record in timed), default=None)
        kept = [r for r in records if not _is_timed(r) or getattr(r.as_trial, field) == last]
        return first_rounds(2)(kept)

    return only


EVERY = "every record of the machine"
CUTS: dict[str, Cut] = {
    EVERY: lambda records: records,
    "none": lambda _: [],
    "all failed": of_each(lambda record: record.model_copy(update=FAILURE), 99),
    "old GPU": of_each(of_old_gpu, 1),
    "first record": first_record,
    "half of round 1": half_of_round_1,
    "round 1 until study 06": round_1_until_study_06,
    "round 1": first_rounds(1),
    "two rounds": first_rounds(2),
    "equal machines, one run": lambda records: on_equal_machines(first_rounds(1)(records)),
    "equal machines, two runs": lambda records: on_equal_machines(first_rounds(2)(records)),
    "beside older machines": beside_older_machines,
    "no traces": of_each(without_traces),
    "no energy": of_each(without_energy),
    "no sensors": of_each(without_sensors),
    "zeros": of_each(with_zeros),
    "one baseline": one_trial(baseline=True),
    "one optimised": one_trial(baseline=False),
    "baselines failed": failing(is_baseline),
    "others failed": failing(lambda record: not is_baseline(record)),
    "one network": one_value("model"),
    "one batch size": one_value("batch"),
}


# ---- folders of reports ---------------------------------------------------------------------------------------------


def shown_records(hw: str, study: str) -> Records:
    """Return the committed records that a study's page shows, [] without any."""
    store = Store(committed_reports() / hw)
    host = host_to_show(store, study, None)
    return [] if host is None else store.read(study, host)


def write_records(folder: Path, hw: str, study: str, cut: Cut) -> str:
    """Write the records that a study's page shows, cut, to another folder of reports. Return its machine."""
    records = cut(whole) if (whole := shown_records(hw, study)) else []
    for host in dict.fromkeys(record.host for record in records):
        path = folder / hw / "records" / host / f"{study}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(record.line() + "\n" for record in records if record.host == host), encoding="utf-8")
        (folder / hw / "hosts").mkdir(exist_ok=True)
        about = json.loads((committed_reports() / hw / "hosts" / f"{whole[0].host}.json").read_text())
        (folder / hw / "hosts" / f"{host}.json").write_text(json.dumps({**about, "id": host}))
    series = committed_reports() / hw / "telemetry" / whole[0].host / f"{study}.parquet" if records else Path()
    if series.is_file():
        (folder / hw / "telemetry" / whole[0].host).mkdir(parents=True, exist_ok=True)
        shutil.copy(series, folder / hw / "telemetry" / whole[0].host)
    return records[0].host if records else ""


@dataclass(frozen=True)
class RecordSet:
    """A folder of reports with the cut records of a profile, and the machine that each study's page shows."""

    hw: str
    folder: Path
    machines: dict[str, str]

    @classmethod
    def written(cls, folder: Path, hw: str, cut: Cut) -> RecordSet:
        return cls(hw, folder, {study: write_records(folder, hw, study, cut) for study in STUDIES})
