"""The runner: turns a study's trials into passes of worker processes and appends each record when its trial ends.

trials -> passes 1..n, each in its own random order -> worker -> record (with the trial's telemetry)
                 ^ a dead, hung or exhausted worker costs its trial; a fresh worker continues the pass

A worker runs trials of one framework. Trials of another framework get their own worker, environment and interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabkitError
from labkit.telemetry.summary import Telemetry
from workbook.errors import Cause
from workbook.hardware.frameworks import is_keras, title_of
from workbook.hardware.host import lost_gpus, write_host
from workbook.hardware.matching import SeenDevice, why_another_device
from workbook.lifetime import requested
from workbook.records import Blocks, Planned, Process, Record, result_of, short_hash, utc_now
from workbook.records.after_traces import TRACES_BEFORE
from workbook.records.other_load import other_load
from workbook.records.shared import read_together
from workbook.runner.forked import end_parent
from workbook.runner.lock import only_measurement
from workbook.runner.nodes.allocation import Nodes, nodes_here
from workbook.runner.plan import (
    by_framework,
    estimate_s,
    expected_s,
    finished_pairs,
    order_of_pass,
    pass_at,
    passes_by_key,
    timed_s,
    together_s,
)
from workbook.runner.process import WorkerProcess, new_id
from workbook.runner.processes import Processes, of_next_process
from workbook.runner.progress import Progress, Stopwatch
from workbook.runner.protocol import Pass, without_paths
from workbook.runner.watch import Watch
from workbook.session import Session
from workbook.trials.trial import Trial
from workbook.words import configuration_name

STARTUP_LIMIT_S = 300.0  # importing a framework from a cold network disk can take minutes


@dataclass(frozen=True)
class Outcome:
    """The counts of one call of `measure`: (trial, pass) pairs measured now, done before, and failed now."""

    measured: int
    resumed: int
    failed: int


def measure(
    trials: Sequence[Trial],
    *,
    study: str,
    session: Session,
    nodes: Nodes | None = None,
    extra: bool = False,
    rounds: Iterable[int] | None = None,
) -> Outcome:
    """Measure every (trial, pass) pair that has no final record of this host, scale, protocol and framework version.

    A configuration that another study measured on this host is not measured again. `rounds` are the numbers of the
    passes to measure, by default all. Trials may run over `nodes`, by default those of this process's Slurm job.
    `extra` trials change no page. Raise LabkitError for a trial listed twice, a worker process that does not start
    and a GPU that the driver lost; UserError if another measurement runs on this machine.
    """
    host, store, scale = session.host, session.store, session.scale
    passes = passes_by_key(trials, session.profile, scale)
    if len(passes) < len(trials):
        raise LabkitError(f"{study} lists a configuration twice: each may occur only once in a run.")
    numbers = list(rounds or range(1, max(passes.values(), default=0) + 1))
    of_pass = {number: [trial for trial in trials if number <= passes[trial.key]] for number in numbers}
    pairs = [(trial, number) for number in numbers for trial in of_pass[number]]

    def missing_now() -> set[tuple[str, int]]:
        records = read_together(store, study, host.id, scale=scale, planned=passes).records
        return {(trial.key, number) for trial, number in pairs} - finished_pairs(records, scale, host)

    if not missing_now():
        return Outcome(0, len(pairs), 0)
    with only_measurement():
        missing = missing_now()  # the measurement that held the lock before may have measured the same pairs
        resumed = len(pairs) - len(missing)
        write_host(host, store.report)
        watch = Watch(study, session, one_device=all(trial.devices == 1 for trial in trials))
        progress = Progress(f"round {numbers[0]}, {study}" if rounds else study, len(pairs), resumed)
        run = _Run(study, session, progress, watch, nodes or nodes_here(), of_report=rounds is not None)
        by_hash = {short_hash(key): number for key, number in passes.items()}
        try:
            with watch:
                for number in numbers:
                    about = pass_at(session, study, number, traces=run.traces)
                    order = order_of_pass(of_pass[number], about.gap_seed)
                    planned = Planned(passes=by_hash, order_seed=about.gap_seed, extra=extra)
                    keys = {key for key, of in missing if of == number}
                    later = {after: of_pass[after] for after in numbers if after > number}
                    run.one_pass(by_framework(order, about.gap_seed), keys, about, planned, later)
        finally:
            progress.close()
            if rounds is None:
                end_parent()
    return Outcome(len(missing), resumed, run.failed)


@dataclass
class _Run:
    """The state of one call of `measure`."""

    study: str
    session: Session
    progress: Progress
    watch: Watch
    nodes: Nodes
    of_report: bool = False  # whose studies follow one another in each round
    failed: int = 0
    later: list[Trial] = field(default_factory=list)  # trials of this pass that need other processes
    beside_others: dict[str, str] = field(default_factory=dict)  # what others used, by key of this pass's trials

    def __post_init__(self) -> None:
        self.host, self.store, self.scale = self.session.host, self.session.store, self.session.scale
        self.log = self.store.report / "logs" / f"{self.study}.log"
        kept = (self.store.report / "traces" / self.host.id / self.study).absolute()
        self.traces = kept if self.session.keeps_traces else None
        has_many = self.of_report or self.session.profile.device.kind == "cuda"  # a GPU's trials: a process each
        self.processes = Processes(self.session, self.nodes, self.log, are_forked=has_many)

    def one_pass(
        self, order: list[Trial], missing: set[str], about: Pass, planned: Planned, later: dict[int, list[Trial]]
    ) -> None:
        """Run the trials of one pass whose keys are `missing`, in as many processes as it takes.

        `later` are the trials of the passes that follow, for the estimate of the time left.
        """
        pending = [trial for trial in order if trial.key in missing]
        if not pending:
            return
        self.of_pass, self.planned = about, planned
        # The times of earlier passes predict better than the plan, so the plan's correction starts anew.
        before = self.store.read(self.study, self.host.id)
        # By key of a trial that passed its gate with this code: the process in which it did.
        self.gated = {
            record.key: record.process.id
            for record in before
            if record.status == "ok" and record.facts.get("gate") and record.versions.get("source") == self.host.source
        }
        refused = {record.key: record for record in before if self._is_refused_by_versions(record)}
        self.expected_s, self.clock = expected_s(order, about, before, self.scale), Stopwatch()
        self.later_s = sum(
            estimate_s(trials, pass_at(self.session, self.study, number), before, self.scale)
            for number, trials in later.items()
        )
        self.watch.begin_pass()
        self.beside_others = {}
        for trial in [trial for trial in pending if trial.key in refused]:
            earlier = refused[trial.key]
            self._fail([trial], new_id(), "unsupported", earlier.reason or "", earlier.cause)
        self._run([trial for trial in pending if trial.key not in refused], about)
        # Once, because a machine that is never idle would be measured for ever; and not for a smoke test's numbers.
        if self.beside_others and self.scale != "smoke":
            again = [trial for trial in order if trial.key in self.beside_others]
            self.progress.say(f"{_others(self.beside_others)} This repeats {len(again)} of {len(pending)} runs.")
            self.progress.repeat(len(again))
            self.beside_others = {}
            self._run(again, about)
        if still := len(self.beside_others):
            self.progress.say(f"{_others(self.beside_others)} The pages flag {still} of {len(pending)} runs.")

    def _run(self, pending: list[Trial], about: Pass) -> None:
        """Run the trials of a pass in as many processes as it takes."""
        while pending:
            together = of_next_process(pending, about)
            taken = set(together)
            self.later = [trial for trial in pending if trial not in taken]
            if reason := self.processes.why_none(together[0]):
                self._fail(together, new_id(), "unsupported", reason)
                pending = self.later
                continue
            with self.processes.start(together, about, [trial.key in self.gated for trial in together]) as worker:
                pending = self._follow(worker, together) + self.later

    def _follow(self, worker: WorkerProcess, pending: list[Trial]) -> list[Trial]:
        """Record a worker's results until it ends or must be ended. Return the trials of `pending` that remain."""
        hello: dict[str, Any] = {}
        position, started, traces = 0, time.monotonic(), 0

        def record(trial: Trial, outcome: dict[str, Any]) -> None:
            nonlocal traces
            process = Process(id=worker.id, position=position, startup_s=hello.get("startup_s", 0.0))
            outcome = outcome | {"facts": {**outcome.get("facts", {}), TRACES_BEFORE: traces}}
            self._record(trial, process, hello.get("details", {}), outcome, started)
            traces += self.of_pass.traces_gpu(trial)

        deadline = started + STARTUP_LIMIT_S
        while pending:
            trial = pending[0]
            try:
                event = worker.next_event(deadline - time.monotonic(), self.progress.go_on)
            except TimeoutError:
                if not hello:
                    why = f"did not start within {STARTUP_LIMIT_S:.0f} s; see {self.log}."
                    return self._not_started(pending, worker.id, "timeout", why)
                where, facts = worker.where_it_hangs()
                reason = f"no result within {self.of_pass.timing.limit_s:.0f} s{where}"
                outcome = {"status": "timeout", "reason": reason, "facts": facts}
                record(trial, outcome)
                return pending[1:]
            if event is None:
                if requested():  # an interrupted runner has killed it, which says nothing about the trial
                    raise KeyboardInterrupt
                status, reason = worker.why_it_died()
                if not hello:
                    return self._not_started(
                        pending, worker.id, "crashed", f"did not start: {reason}. Its log: {self.log}."
                    )
                record(trial, {"status": status, "reason": reason})
                return pending[1:]
            if event["event"] == "hello":
                hello = event
                chosen = [self.host.gpus[index] for index in self.session.devices]
                if other := why_another_device([SeenDevice(*device) for device in event["devices"]], chosen):
                    raise LabkitError(
                        f"{other}. Its numbers would stand under another device's name, so nothing was measured. Give "
                        f"CUDA_VISIBLE_DEVICES= the number of a whole card; labkit measures no slice of a card."
                    )
            elif event["event"] == "start":
                started = time.monotonic()
                deadline = started + self.of_pass.timing.limit_s
                self._show(pending, "preparing", 0.0)
            elif event["event"] == "progress":
                self._show(pending, event["phase"], event["share"])
            elif event["event"] == "done":
                record(trial, event)
                pending, position = pending[1:], position + 1
                started = time.monotonic()
                deadline = started + STARTUP_LIMIT_S
                if event["status"] in ("oom", "crashed"):
                    return pending
        return pending

    def _not_started(self, pending: list[Trial], process: str, status: str, why: str) -> list[Trial]:
        """Return the trials that remain after a process that did not start.

        For Keras, record all of `pending` as failed and return an empty list: trials of other frameworks may still run.
        Otherwise raise LabkitError.
        """
        framework = pending[0].framework
        if not is_keras(framework):
            raise LabkitError(f"a worker process {why}")
        self._fail(pending, process, status, f"the process for {title_of(framework)} {why}")
        return []

    def _is_refused_by_versions(self, record: Record) -> bool:
        """Return whether an earlier pass found that the installed versions cannot run a trial, which stays so."""
        versions = self.host.versions(record.framework)
        return (
            record.status == "unsupported"
            and record.cause == "version"
            and record.scale == self.scale
            and all(record.versions.get(name) == version for name, version in versions.items())
        )

    def _fail(self, trials: list[Trial], process: str, status: str, reason: str, cause: Cause | None = None) -> None:
        """Record the same status and reason for each trial of a process that could not run any."""
        outcome = {"status": status, "reason": without_paths(reason), **({"cause": cause} if cause else {})}
        for position, trial in enumerate(trials):
            made_by = Process(id=process, position=position, startup_s=0.0)
            self._record(trial, made_by, {}, outcome, time.monotonic())

    def _record(
        self,
        trial: Trial,
        process: Process,
        details: dict[str, str],
        outcome: dict[str, Any],
        started: float,
    ) -> None:
        wall_s = outcome.get("wall_s", time.monotonic() - started)
        result = result_of(outcome["result"]) if outcome.get("result") else None
        facts = dict(outcome.get("facts", {}))
        if trial.key in self.gated and "gate" not in facts:
            facts["gate_passed_in"] = self.gated[trial.key]
        if trial.nodes > 1:
            facts["telemetry_of"] = f"the first of {trial.nodes} nodes"
        interrupt: KeyboardInterrupt | None = None
        try:
            telemetry = self.watch.of_trial(
                trial, result=result if isinstance(result, Blocks) else None, windows=outcome.get("windows", {})
            )
        except KeyboardInterrupt as error:  # the trial is done, so its record is written first
            interrupt, telemetry = error, Telemetry(status="lost", reason="interrupted while the configuration ended")
        record = Record(
            study=self.study,
            scale=self.scale,
            key=trial.key,
            trial=trial.as_dict(),
            pass_number=self.of_pass.number,
            short=self.of_pass.short,
            timing=self.of_pass.timing.model_dump(include={"warmup_s", "timed_s", "block_s"}),
            planned=self.planned,
            process=process,
            host=self.host.id,
            fingerprint=self.host.fingerprint,
            node=self.host.node,
            devices_used=trial.devices_taken,
            versions={**self.host.versions(trial.framework), **details},
            environment=dict(self.session.environment),
            status=outcome["status"],
            reason=outcome["reason"],
            cause=outcome.get("cause", "here") if outcome["status"] == "unsupported" else None,
            started_at=outcome.get("started_at") or utc_now(),
            wall_s=wall_s,
            phases_s=outcome.get("phases_s", {}),
            facts=facts,
            result=result,
            telemetry=telemetry,
        )
        self.store.append(record)
        if record.status == "ok" and (load := other_load(telemetry, first=not process.position)):
            self.beside_others[trial.key] = load
        if interrupt is not None:
            raise interrupt
        self.watch.keep(trial, scale=self.scale, pass_number=self.of_pass.number)
        self.clock.add(self.expected_s[trial.key], wall_s)
        self.progress.finished_one()
        if record.status in ("crashed", "timeout"):
            self.failed += 1
            # Without a GPU that the driver lost, every further trial would fail, each after a start of seconds.
            if self.session.profile.device.kind == "cuda" and (lost := lost_gpus(self.host)):
                raise LabkitError(
                    f"the driver no longer lists {len(lost)} of {len(self.host.gpus)} GPUs ({lost[0]}). Finished "
                    f"measurements are kept. Make `nvidia-smi` list the GPU again, often by a restart of the machine; "
                    f"the same command then measures the rest."
                )

    def _show(self, pending: list[Trial], phase: str, share: float) -> None:
        rest = [*pending, *self.later]
        rest_s = together_s(rest, self.expected_s, self.of_pass)
        rest_s -= share * (timed_s(pending[0], self.of_pass.timing) if phase == "timed" else 0)
        left_s = self.clock.correct(rest_s + self.later_s)
        trial = configuration_name(pending[0], beside=rest)
        last = max(self.planned.passes.values())
        what = f"run {self.of_pass.number}/{last}, {trial}, {phase} {share:.0%}"
        self.progress.show(what, left_s)


def _others(loads: dict[str, str]) -> str:
    """Return what others used during most of the runs, as a sentence."""
    return f"Others used {max(loads.values(), key=list(loads.values()).count)}."
