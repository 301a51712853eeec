"""The interface of a notebook: one study of one profile, its trials, and the call that measures.

lab = open_study("01_training", hw=hw, scale=scale, mode=mode, data=data)
trials = lab.trials(model=lab.sweep["models"], batch=lab.sweep["batch"])
results = lab.measure(trials)
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from labkit.data import DataSet
from labkit.errors import LabkitError, UserError, one_of, unknown
from labkit.models import MODELS
from labkit.timing.step import doubts
from workbook.claims import Findings
from workbook.claims.reports import evidence, verdicts
from workbook.datasets import data_at_scale, documents_of_user, stored_set
from workbook.hardware.environment import line_of_changers
from workbook.hardware.host import Host, read_host, this_host
from workbook.hardware.matching import detect, mismatch, require_match
from workbook.hardware.profile import load_profile
from workbook.options import open_session
from workbook.records import Record
from workbook.records.selection import host_to_show
from workbook.registry import Study, find_study
from workbook.results import Results, is_report, other_hosts, records_of_host, study_records
from workbook.results.columns import WHAT_RAN
from workbook.results.study_records import StudyRecords
from workbook.runner import measure, nodes_here
from workbook.runner.plan import passes_by_key, what_is_missing
from workbook.runner.progress import LINE_EVERY_S, duration
from workbook.session import Session
from workbook.show import Table
from workbook.storage.make import Progress
from workbook.studies.planner import Cpu, Planner, Sweep
from workbook.trials import recipes
from workbook.trials.trial import (
    ASKED_AFTER,
    NO_DATA,
    OF_NETWORKS,
    OWN,
    WORDS,
    Trial,
    as_on_disk,
    grid,
    thread_counts,
    without_data,
)
from workbook.words import MISSING, configuration_name, heading, label, mode_name, plural

Mode = Literal["auto", "measure", "render", "plan"]
MODES = ("auto", "measure", "render", "plan")
# Values of `data` in a sweep or notebook. DIGITS: the handwritten digits. REPORTS_OWN: the images that DATA= names.
# TIMED: the same for trials that are only timed; synthetic32 replaces images that only scoring can use. REUTERS: the
# documents that REUTERS= names, or documents drawn in their shape.
DIGITS, REPORTS_OWN, TIMED, REUTERS = "digits", "own", "timed", "reuters"
# What `measure` read last: how many records of which host, and the passes that chose them. The check of a page asks it.
SHOWN: dict[str, Any] = {}
# The precisions in which the peak of a kind of device is measured; a CPU without BF16 arithmetic has FP32's alone.
PEAKS = {"cuda": ["fp32", "tf32", "fp16", "bf16", "fp8", "int8"], "cpu": ["fp32", "bf16"]}
MOST_UNEVEN = 5  # uneven runs that a warning names
MOST_LACKING = 3  # configurations without a record whose nearest record a message names

# Columns that a plan's table leaves out: the batches share a cell, and the mode's name covers the engine's fields. A
# column is shown nevertheless if trials of the same row differ in it.
_IN_PLAN_LEFT_OUT = (
    *("batch", "data_checksum", "workload_source", "engine", "optimizer", "memory_format", "loader", *ASKED_AFTER),
)


@dataclass(repr=False)
class OpenStudy(Planner):
    """One study of one profile. Mode `auto` measures what is missing if this machine has the profile's hardware."""

    study: Study
    session: Session
    mode: Mode

    def __post_init__(self) -> None:
        of = self.session
        self.profile, self.host, self.store, self.scale, self.data = of.profile, of.host, of.store, of.scale, of.data
        self.network, self.batches = of.network, of.batches

    def __repr__(self) -> str:
        return f"{self.study.id} of {self.profile.name}, scale {self.scale}, mode {self.mode}"

    @property
    def sweep(self) -> Sweep:
        """The sizes that the profile gives this study at this scale."""
        return self.profile.sweep(self.study.id, self.scale)

    @cached_property
    def measures_here(self) -> bool:
        """Whether this call may measure: the mode allows it and this machine has the profile's hardware."""
        if self.mode == "measure":
            require_match(self.profile, self.host)
            return True
        return self.mode == "auto" and mismatch(self.profile, self.host) is None

    @cached_property
    def images(self) -> DataSet | None:
        """The data set; None if nothing can be measured here (records name their own)."""
        return self._images_of(self.data)

    @cached_property
    def digits(self) -> DataSet | None:
        """The handwritten digits, for trials that name them with any images of the report; None as `images`."""
        return self._images_of(DIGITS)

    @cached_property
    def timed_images(self) -> DataSet | None:
        """The images of trials that are timed and not scored: the report's own, or synthetic32 in their place."""
        own = self.images
        return self._images_of("") if own is not None and own.validation_only else own

    def scoring(self) -> Sweep:
        """Return the fields of scored trials that depend on the report's images: their number, batch and size."""
        if self.images is None or not self.images.validation_only:
            return {"scored": self.sweep["scored"], "batch": self.sweep["scored_batch"]}
        sizes = {"scored": self.sweep["imagenet_scored"], "batch": self.sweep["imagenet_batch"]}
        return {**sizes, "image_px": self.images.edge_px}

    @cached_property
    def documents(self) -> DataSet | None:
        """The documents for networks that take bags of words: REUTERS=, else `reuters_shaped`; None as `images`."""
        return documents_of_user(self.session.reuters) if self._runs_here else None

    def stored(self, images: int, forms: Sequence[str]) -> dict[str, Any]:
        """Return the fields of trials that read `images` from files: their set and its classes; none as `images`.

        Forms that are missing are made, which may take minutes: the progress is printed. UserError as `stored_set`.
        """
        if not self._runs_here:
            return {}
        name, made = stored_set(self.data, images, forms=forms, progress=_printed())
        any_form = next(iter(made.values()))
        classes = max(Trial().classes, any_form.classes)
        return {"data": name, "data_checksum": any_form.checksum, "classes": classes}

    def _images_of(self, name: str) -> DataSet | None:
        return data_at_scale(name, self.scale) if self._runs_here else None

    @property
    def _runs_here(self) -> bool:
        """Whether this call measures here, or plans to."""
        return self.measures_here or (self.mode == "plan" and mismatch(self.profile, self.host) is None)

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device to compare within this profile's machine: `cuda` and `cpu`, or `cpu` alone."""
        return WORDS["device"] if self.profile.device.kind == "cuda" else ("cpu",)

    @cached_property
    def cpu(self) -> Cpu:
        """The CPU of this machine if it can measure, else the CPU of the host whose records are shown."""
        if self._shown_host is None:
            return Cpu(self.host.cpu_cores, self.host.cpu_features)
        recorded = read_host(self.store.report, self._shown_host)
        return Cpu(int(recorded["cpu_cores"]), tuple(recorded["cpu_features"]))

    @cached_property
    def _shown_host(self) -> str | None:
        """The id of the host whose records are shown; None without records, or if this call measures here."""
        return None if self._runs_here else host_to_show(self.store, self.study.id, None)

    @property
    def device_counts(self) -> list[int]:
        """The numbers of devices in a study of several devices: powers of two, and all of the profile's.

        A CPU counts as one device. Two processes that share its cores count as two.
        """
        if self.profile.device.kind == "cpu":
            return [1, 2] if self.cpu.cores > 1 else [1]
        every = self.profile.device.count
        return sorted({every, *(2**power for power in range(every.bit_length()))})

    @property
    def threads_of_each(self) -> int:
        """The threads of each process in a study of several devices, for every number of processes; 0 with GPUs."""
        return 0 if self.profile.device.kind == "cuda" else max(1, self.cpu.cores // self.device_counts[-1])

    @cached_property
    def nodes(self) -> int:
        """The number of nodes for trials: this Slurm job's, else 1; the records' largest if only records are shown."""
        if self.mode == "plan" or self.measures_here:
            return nodes_here().count
        records = self.store.read(self.study.id, self._shown_host) if self._shown_host else []
        return max((record.as_trial.nodes for record in records), default=1)

    def thread_counts(self, asked: object) -> list[int]:
        """Return the axis of threads that a sweep asks for, on this CPU: see `workbook.trials.trial.thread_counts`."""
        return thread_counts(asked, self.cpu.cores)

    def trials(self, **axes: Any) -> list[Trial]:
        """Return every combination of the given fields on this profile's device and data; a list is an axis.

        `data` is "digits" for the handwritten digits, "none" for workloads without images, "timed" for `timed_images`,
        "reuters" for `documents`, else the report's images. Trials that read files have the fields of `stored`. Raise
        UserError for an unknown field, value or network.
        """
        device, data = {"device": self.profile.device.kind}, str(axes.get("data", ""))
        if data == NO_DATA or "form" in axes:
            return grid(**{**device, **axes})
        if data == TIMED:
            images = self.timed_images
        elif data == REUTERS:
            images = self.documents
        else:
            images = self.digits if data == DIGITS else self.images
        if data in (REPORTS_OWN, TIMED) or (data == REUTERS and images):
            del axes["data"]
        of_images = {"data": images.name, "data_checksum": images.checksum, "classes": images.classes} if images else {}
        trials = grid(**{**device, **of_images, **axes})
        for trial in trials:
            if trial.workload in OF_NETWORKS and trial.workload not in OWN and trial.model not in MODELS:
                raise unknown("network", trial.model, MODELS)
        return trials

    def ceilings(self, device: str | None = None) -> list[Trial]:
        """Return the trials that measure a device's ceilings: matrix products, copy in its memory, launch rate.

        A matrix product runs in each precision whose rates pages show. `device` is `cuda` or `cpu`, by default the
        profile's kind.
        """
        kind = device or self.profile.device.kind
        edge, copied_bytes = (8192, 2**32) if kind == "cuda" else (2048, 2**28)
        precisions = PEAKS[kind] if kind == "cuda" or recipes.has_bf16(self.cpu.features) else ["fp32"]
        return [
            *self.trials(workload="matmul", size=edge, data=NO_DATA, device=kind, precision=precisions),
            *self.trials(workload="memory_copy", size=copied_bytes, data=NO_DATA, device=kind),
            *self.trials(workload="launch_rate", size=3000, data=NO_DATA, device=kind),
        ]

    def recorded(self) -> list[Record]:
        """Return the records that a page of this study shows, of any trial."""
        return self._selected().records if self.store.hosts(self.study.id) else []

    def plan(self, trials: Sequence[Trial]) -> Table:
        """Return a table of the configurations that `measure` will run. Its caption has the time that they take.

        Raise UserError if `trials` is no list of trials, or is empty.
        """
        _check_list(trials)
        if not len(trials):
            raise UserError(
                "the list of configurations is empty, so there is no plan: give at least one, by `lab.trials(...)`."
            )
        trials = [as_on_disk(trial) for trial in trials]
        if not self.measures_here:
            recorded = len(trials) - len(self._selected().without_records(trials))
            caption = f"With records: {recorded} of {len(trials)}. Nothing is measured."
        else:
            missing = what_is_missing(trials, self.study.id, self.session)
            seconds = sum(of_pass.seconds for of_pass in missing.values())
            caption = f"Measured on this machine in about {duration(seconds)}, into {self.store.report}."
            caption = caption if seconds else "All have their records on this machine."
        frame = pd.DataFrame([{"mode": mode_name(trial), **trial.as_dict()} for trial in trials]).astype(object)
        keys = [name for name in WHAT_RAN if name not in _IN_PLAN_LEFT_OUT and frame[name].nunique() > 1] or ["mode"]
        rows = frame.groupby(keys, sort=False)  # trials of a row differ in their batch alone
        keys += [name for name in _IN_PLAN_LEFT_OUT if name != "batch" and (rows[name].nunique() > 1).any()]
        frame.loc[~frame["workload"].isin(OF_NETWORKS), ["model", "image_px", "batch"]] = MISSING
        frame["size"] = frame["size"].replace(0, MISSING)
        batches = frame.groupby(keys, sort=False)["batch"].agg(lambda sizes: ", ".join(map(str, dict.fromkeys(sizes))))
        shown = batches.reset_index().rename(columns=heading)
        for name in keys:
            shown[heading(name)] = [label(name, value) for value in shown[heading(name)]]
        passes = sorted(set(passes_by_key(trials, self.profile, self.scale).values()))
        runs = " or ".join(map(str, passes))
        counts = f"{plural(len(frame), 'configuration')}, {runs} run{'s' * (passes[-1] > 1)}"
        counts += " each" * (len(frame) > 1)
        return Table(shown, shown, f"{counts}. {caption}", len(keys))

    def measure(self, trials: Sequence[Trial]) -> Results:
        """Measure what is missing, if this call may measure, and return the results that the page shows.

        In JupyterLab the results are of the given trials, and the pages of a report stay as they are. There, warn if
        some trials have no record, raise UserError if none has one, and warn of uneven blocks after measuring. Raise
        UserError also if `trials` is no list of trials.

        A workload that is a module of the user is measured anew once its text, or that of a module which it imports,
        has changed. The results then leave out the records of the earlier text.
        """
        _check_list(trials)
        trials = [as_on_disk(trial) for trial in trials]
        if self.mode == "plan":
            raise LabkitError("mode 'plan' measures nothing: run only the cells up to the one tagged `trials`.")
        if self.measures_here and not is_report():  # a report has measured in rounds before it runs its notebooks
            if changers := line_of_changers():
                print(changers)  # noqa: T201 - once, above the progress
            measure(trials, study=self.study.id, session=self.session, extra=True)
        records = self._measured_here(trials) if self.measures_here else None
        if records is None:
            records = self._selected()
            SHOWN.update(records=len(records.records), host=records.host_id, passes=None)
            records = _without_other_code(records, trials)
        asked = trials if records.scale == self.scale else []
        if not is_report():
            self._check_recorded(records, trials)
            if self.measures_here:
                _warn_of_uneven(records)
        return Results([records], partial(other_hosts, [records]), asked)

    def _selected(self) -> StudyRecords:
        """Return the records that pages of the profile show."""
        return study_records(self.profile, self.study, store=self.store, here=self.host.id, asked=self.scale)

    def _check_recorded(self, records: StudyRecords, trials: Sequence[Trial]) -> None:
        """Raise UserError if no trial has a record, and warn if some have none."""
        without = records.without_records(trials)
        if not without or not records:  # tables and figures of a study without any record say so
            return
        number = plural(len(records.by_trial), "recorded configuration")
        has = f"{self.study.id} of {self.profile.name} has {number} at scale {records.scale}."
        has = f"{has} {_nearest(records, without)}"
        if len(without) < len(trials):
            lacking = f"{len(without)} of {len(trials)} configurations given to `measure` have no record"
            warnings.warn(f"{lacking}. The results hold all records: {has}", stacklevel=3)
            return
        of_what = ", ".join(map(repr, (self.profile.name, self.study.name)))
        reason = "mode='render' only reads" if self.mode == "render" else mismatch(self.profile, self.host)
        raise UserError(
            f"no configuration given to `measure` has a record; {has} Nothing was measured: {reason}. "
            f"`workbook.load({of_what}).frame()` shows what is recorded, and "
            f"`workbook.open_study({self.study.name!r})` measures on this machine."
        )

    def _measured_here(self, trials: Sequence[Trial]) -> StudyRecords | None:
        """Return this host's records of the trials; None without any. A report shows a larger complete scale first."""
        if self.host.id not in self.store.hosts(self.study.id):
            return None
        passes = passes_by_key(trials, self.profile, self.scale)
        asked, scale = (self.scale, passes), None if is_report() else self.scale
        records = records_of_host(
            self.profile, self.study, store=self.store, host_id=self.host.id, asked=asked, scale=scale
        )
        SHOWN.update(records=len(records.records), host=records.host_id, passes=passes)
        return records

    def verdicts(self, results: Results) -> Findings:
        """Return the verdicts on this study's claims, from the records shown and those of other studies."""
        seen = evidence(self.profile.name, self.host.id, known=results.selected)
        return verdicts(seen, self.study.id)


def _printed() -> Progress:
    """Return a function that prints how many images of a set in files are made: every half minute, and when all are."""
    printed_s = time.monotonic()

    def show(form: str, done: int, images: int) -> None:
        nonlocal printed_s
        if done == images or time.monotonic() - printed_s > LINE_EVERY_S:
            printed_s = time.monotonic()
            print(f"      {form}: {done:,} of {images:,} images made", flush=True)  # noqa: T201 - for a log

    return show


def _nearest(records: StudyRecords, without: Sequence[Trial]) -> str:
    """Return a sentence: how the recorded configurations nearest to trials without a record differ from them."""
    texts = []
    for trial in without[:MOST_LACKING]:
        fields = [f"{name}={held!r}, not {asked!r}" for name, (asked, held) in records.nearest(trial).items()]
        texts.append(f"{configuration_name(trial, beside=without)} ({', '.join(fields)})")
    texts += ["and others"] if len(without) > MOST_LACKING else []
    return f"Nearest records: {'; '.join(texts)}."


def _without_other_code(records: StudyRecords, trials: Sequence[Trial]) -> StudyRecords:
    """Return the records but those that differ from one of `trials` only in the code of the user's workload."""

    def without_code(trial: Trial) -> Trial:
        return replace(without_data(trial), workload_source="")

    now = {without_code(trial): trial.workload_source for trial in trials if trial.workload_source}
    if not now:
        return records
    recorded = [(record, record.as_trial) for record in records.records]
    kept = [record for record, of in recorded if now.get(without_code(of), of.workload_source) == of.workload_source]
    return replace(records, records=kept)


def _warn_of_uneven(records: StudyRecords) -> None:
    """Warn of records whose warm-up did not become steady or whose blocks vary."""
    runs = [(trial, record) for trial, passes in records.by_trial.items() for record in passes]
    uneven = [
        f"{configuration_name(trial, beside=records.by_trial)}, run {record.pass_number}: {', '.join(found)}"
        for trial, record in runs
        if record.blocks and (found := doubts(record.blocks))
    ]
    if uneven:
        lines = [*uneven[:MOST_UNEVEN], *(["and others"] if len(uneven) > MOST_UNEVEN else [])]
        warnings.warn(
            f"the times of {len(uneven)} of {plural(len(runs), 'run')} are uneven. Other load on this machine is a "
            "possible cause.\n" + "\n".join(lines) + "\nTo measure again, call `lab.store.move_aside(lab.study.id, "
            "lab.host.id, lab.scale)` and then `lab.measure(trials)`. The first call moves all records of the study at "
            "this scale into the folder `aside`, also those of a report.",
            stacklevel=3,
        )


def _check_list(trials: object) -> None:
    """Raise UserError if `trials` is no list of trials."""
    wrong: object = trials
    if isinstance(trials, Sequence) and not isinstance(trials, str):
        wrong = next((trial for trial in trials if not isinstance(trial, Trial)), None)
        if wrong is None:
            return
    shown = "a single configuration" if isinstance(wrong, Trial) else repr(wrong)
    raise UserError(f"`plan` and `measure` take a list of configurations, not {shown}: `lab.trials(...)` or `[trial]`.")


def open_study(
    study: str,
    *,
    hw: str = "",
    scale: str = "quick",
    mode: str = "auto",
    data: str | Path = "",
    weights: str | Path = "",
    reuters: str | Path = "",
    network: str | Path = "",
    batches: str = "",
    host: Host | None = None,
) -> OpenStudy:
    """Open a study. `hw` names a profile; if empty, the profile is detected.

    `data`, `weights`, `reuters`, `network` and `batches` are the options DATA=, WEIGHTS=, REUTERS=, NETWORK= and BATCH=
    of `make report`. Raise UserError for an unknown study, profile, scale or mode, for images that the study cannot
    use, for a folder without weights, and for batch sizes without a network; LabkitError if no profile matches this
    machine.
    """
    one_of("mode", mode, MODES)
    about, here = find_study(study), host or this_host()
    profile = load_profile(hw) if hw else detect(here)
    if profile is None:
        raise LabkitError(f"no profile matches {here.summary()}: `make profile` writes one.")
    session = open_session(
        profile,
        here,
        [about.id],
        scale=scale,
        data=str(data),
        weights=str(weights),
        reuters=str(reuters),
        network=str(network),
        batches=batches,
        keeps_traces=os.environ.get("KEEP_TRACES") == "1",
    )
    if not hw and mode == "auto":
        require_match(profile, here)  # such a call is to measure, so a PyTorch that does not run here ends it
    return OpenStudy(study=about, session=session, mode=mode)  # type: ignore[arg-type]
