"""The runner: turns a study's trials into passes of worker processes and appends each record as it comes.

trials -> passes 1..n, each in its own random order -> worker -> record (with what telemetry saw beside it)
                 ^ a dead, hung or exhausted worker costs its trial; a fresh one goes on with the pass
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.cpu_limits import usable_threads
from labkit.errors import LabkitError
from labkit.host import Host, write_host
from labkit.matching import device_indices
from labkit.observed import Telemetry
from labkit.profile import Profile, Timing
from labkit.record_store import Store
from labkit.records import Blocks, Epochs, Planned, Process, Record, short_hash, utc_now
from labkit.run.group import GroupProcess
from labkit.run.group_over_nodes import GroupOverNodes
from labkit.run.lock import only_measurement
from labkit.run.network import network_of
from labkit.run.nodes import Nodes, nodes_here
from labkit.run.plan import estimate_s, lacked, order_of_pass, order_seed, timed_s
from labkit.run.process import Spawned, WorkerProcess
from labkit.run.progress import Progress, Stopwatch
from labkit.run.watch import Watch
from labkit.selection import done
from labkit.trial import Trial

STARTUP_LIMIT_S = 300.0  # importing a framework from a cold network disk can take minutes


@dataclass(frozen=True)
class Outcome:
    """What a call of `measure` did: (trial, pass) pairs measured now, found done before, and failed now."""

    measured: int
    resumed: int
    failed: int
    seconds: float

    def sentence(self) -> str:
        """For people."""
        said = f"Measured {self.measured} trials in {self.seconds:.0f} s"
        if self.resumed:
            said += f"; {self.resumed} were measured before and are kept"
        if self.failed:
            said += f"; {self.failed} failed and stand in the table with their reasons"
        return said + "."


def measure(
    trials: Sequence[Trial],
    *,
    study: str,
    scale: str,
    profile: Profile,
    host: Host,
    store: Store,
    nodes: Nodes | None = None,
) -> Outcome:
    """Measure every (trial, pass) pair that has no final record of this host, scale, protocol and framework version.

    `nodes` are those that trials may run over; without them, those of the job that this process is a part of.
    """
    passes, timing = profile.passes(scale), profile.timing_at(scale, study)
    if len({trial.key for trial in trials}) < len(trials):
        raise LabkitError(f"{study} lists a trial twice: each key may stand once in a pass.")
    pairs = [(trial, number) for number in range(1, passes + 1) for trial in trials]

    def missing_now() -> set[tuple[str, int]]:
        finished = done(store.read(study, host.id), scale=scale, versions=host.versions(), again=lacked)
        return {(trial.key, number) for trial, number in pairs} - finished

    if not missing_now():
        return Outcome(0, len(pairs), 0, 0.0)
    with only_measurement():
        missing = missing_now()  # the one that held the machine may have measured the same
        resumed = len(pairs) - len(missing)
        write_host(host, store.report)
        watch = Watch(study, profile, host, store)
        progress = Progress(study, len(pairs), resumed)
        run = _Run(study, scale, profile, host, store, timing, progress, watch, nodes or nodes_here())
        began = time.monotonic()
        try:
            with watch:
                for number in range(1, passes + 1):
                    order = order_of_pass(trials, study=study, scale=scale, pass_number=number)
                    seed = order_seed(study, scale, number)
                    planned = Planned(keys=[short_hash(trial.key) for trial in trials], passes=passes, order_seed=seed)
                    run.one_pass([trial for trial in order if (trial.key, number) in missing], number, planned)
        finally:
            progress.close()
    return Outcome(len(missing), resumed, run.failed, time.monotonic() - began)


class _Run:
    """The state of one call of `measure`."""

    def __init__(
        self,
        study: str,
        scale: str,
        profile: Profile,
        host: Host,
        store: Store,
        timing: Timing,
        progress: Progress,
        watch: Watch,
        nodes: Nodes,
    ) -> None:
        self.study, self.scale, self.profile, self.host, self.store = study, scale, profile, host, store
        self.timing, self.progress, self.watch, self.nodes = timing, progress, watch, nodes
        self.failed = 0
        self.later: list[Trial] = []  # of this pass, for other processes than the present ones
        self.passes_left = profile.passes(scale)
        self.clock = Stopwatch()
        self.log = store.report / "logs" / f"{study}.log"

    def one_pass(self, pending: list[Trial], number: int, planned: Planned) -> None:
        """Run the trials of one pass, in as many processes as it takes."""
        self.pass_number, self.planned = number, planned
        self.passes_left = planned.passes - number
        self.whole_pass_s = estimate_s(pending, self.timing, self.store.read(self.study, self.host.id), self.scale)
        if not pending:
            return
        self.watch.begin_pass(pending)
        while pending:
            wanted = _processes_of(pending[0])
            together = [trial for trial in pending if _processes_of(trial) == wanted]
            self.later = [trial for trial in pending if _processes_of(trial) != wanted]
            with self._start(together, planned.order_seed) as worker:
                pending = self._follow(worker, together) + self.later

    def _start(self, pending: list[Trial], gap_seed: int) -> Spawned:
        """One process for trials on one device; as many as the largest trial wants, or as there are devices, else.

        Trials that want more devices or nodes than there are get one too, which refuses them.
        """
        indices = device_indices(self.profile, self.host) if self.profile.device.kind == "cuda" else []
        available = len(indices) or usable_threads()
        first = pending[0]
        about: dict[str, Any] = {
            "log": self.log,
            "environment": self._environment() | network_of(first),
            "gap_seed": gap_seed,
            "pass_number": self.pass_number,
        }
        if 1 < first.nodes <= self.nodes.count and first.devices_of_node <= available:
            return GroupOverNodes(pending, self.timing, nodes=self.nodes, **about)
        ranks = max((one.processes for one in pending if one.nodes == 1 and one.devices <= available), default=1)
        if ranks == 1:
            return WorkerProcess(pending, self.timing, **about)
        return GroupProcess(pending, self.timing, ranks=ranks, **about)

    def _environment(self) -> dict[str, str]:
        """The worker sees the profile's devices and no others."""
        if self.profile.device.kind == "cpu":
            return {"CUDA_VISIBLE_DEVICES": ""}
        indices = ",".join(map(str, device_indices(self.profile, self.host)))
        return {"CUDA_VISIBLE_DEVICES": indices, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def _follow(self, worker: Spawned, pending: list[Trial]) -> list[Trial]:
        """Record what a worker reports until it ends or must be ended; what is left of `pending` then."""
        hello: dict[str, Any] = {}
        position, started = 0, time.monotonic()
        deadline = started + STARTUP_LIMIT_S
        while pending:
            trial = pending[0]
            try:
                event = worker.next_event(deadline - time.monotonic())
            except TimeoutError:
                if not hello:
                    raise LabkitError(
                        f"a worker process did not start within {STARTUP_LIMIT_S:.0f} s; see {self.log}."
                    ) from None
                where, facts = worker.where_it_hangs()
                reason = f"no result within {self.timing.limit_s:.0f} s{where}"
                outcome = {"status": "timeout", "reason": reason, "facts": facts}
                self._record(trial, worker, position, hello, outcome, started)
                return pending[1:]
            if event is None:
                status, reason = worker.why_it_died()
                if not hello:
                    raise LabkitError(f"a worker process did not start: {reason}. Its log: {self.log}.")
                self._record(trial, worker, position, hello, {"status": status, "reason": reason}, started)
                return pending[1:]
            if event["event"] == "hello":
                hello = event
            elif event["event"] == "start":
                started = time.monotonic()
                deadline = started + self.timing.limit_s
                self._show(pending, "preparing", 0.0)
            elif event["event"] == "progress":
                self._show(pending, event["phase"], event["share"])
            elif event["event"] == "done":
                self._record(trial, worker, position, hello, event, started)
                pending, position = pending[1:], position + 1
                started = time.monotonic()
                deadline = started + STARTUP_LIMIT_S
                if event["status"] in ("oom", "crashed"):
                    return pending
        return pending

    def _record(
        self,
        trial: Trial,
        worker: Spawned,
        position: int,
        hello: dict[str, Any],
        outcome: dict[str, Any],
        started: float,
    ) -> None:
        wall_s = outcome.get("wall_s", time.monotonic() - started)
        result = _result(outcome["result"]) if outcome.get("result") else None
        interrupt: KeyboardInterrupt | None = None
        try:
            telemetry = self.watch.of_trial(
                trial, result=result if isinstance(result, Blocks) else None, windows=outcome.get("windows", {})
            )
        except KeyboardInterrupt as error:  # the trial is done: its record first
            interrupt, telemetry = error, Telemetry(status="lost", reason="interrupted while the trial ended")
        record = Record(
            study=self.study,
            scale=self.scale,
            key=trial.key,
            trial=trial.as_dict(),
            pass_number=self.pass_number,
            planned=self.planned,
            process=Process(id=worker.id, position=position, startup_s=hello.get("startup_s", 0.0)),
            host=self.host.id,
            devices_used=trial.devices,
            versions={**self.host.versions(), **hello.get("details", {})},
            status=outcome["status"],
            reason=outcome["reason"],
            started_at=outcome.get("started_at") or utc_now(),
            wall_s=wall_s,
            phases_s=outcome.get("phases_s", {}),
            facts={**outcome.get("facts", {}), **_whose_telemetry(trial)},
            result=result,
            telemetry=telemetry,
        )
        self.store.append(record)
        if interrupt is not None:
            raise interrupt
        self.watch.keep(trial, scale=self.scale, pass_number=self.pass_number)
        self.failed += record.status in ("crashed", "timeout")
        self.clock.add(estimate_s([trial], self.timing, [], self.scale), wall_s)
        self.progress.finished_one()

    def _show(self, pending: list[Trial], phase: str, share: float) -> None:
        rest_s = estimate_s([*pending, *self.later], self.timing, [], self.scale)
        rest_s -= share * (timed_s(pending[0], self.timing) if phase == "timed" else 0)
        left_s = self.clock.correct(rest_s + self.passes_left * self.whole_pass_s)
        what = f"pass {self.pass_number}/{self.planned.passes}, {pending[0].label(beside=pending)}, {phase} {share:.0%}"
        self.progress.show(what, left_s)


def _processes_of(trial: Trial) -> tuple[object, ...]:
    """What trials that share processes have in common.

    What NCCL may use is settled when a process begins. Over several nodes the ranks of a trial are as many on each, so
    that those of a smaller one are not the first of a larger one's.
    """
    over_nodes = (trial.nodes, trial.devices) if trial.nodes > 1 else ()
    return tuple(network_of(trial).items()), over_nodes


def _whose_telemetry(trial: Trial) -> dict[str, str]:
    return {} if trial.nodes == 1 else {"telemetry_of": f"the first of {trial.nodes} nodes"}


def _result(values: dict[str, Any]) -> Blocks | Epochs:
    """What a worker measured, by its kind."""
    kinds: dict[str, type[Blocks] | type[Epochs]] = {"blocks": Blocks, "epochs": Epochs}
    return kinds[values["kind"]].model_validate(values)
