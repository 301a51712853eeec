"""One process of a pass: runs the trials it is given, one after the other, and reports each the moment it ends.

Started by the runner as `python -m labkit.run.worker`. The job comes as one JSON line on stdin, which then stays open:
when it closes, the runner is gone and this process ends by itself. Events go out as JSON lines on what was stdout at
the start; whatever libraries print goes to stderr, which the runner keeps as a log.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import Any, NamedTuple

from labkit.data import DataSet, open_by_checksum
from labkit.errors import GateError, LabkitError, Unsupported, is_out_of_memory
from labkit.measure import (
    Clock,
    CudaClock,
    HostClock,
    free_memory,
    peak_memory,
    quiet_collector,
    reset_compiler,
    reset_peak_memory,
    time_blocks,
    time_queries,
)
from labkit.profile import Timing
from labkit.records import Epoch, Epochs, Queries, utc_now
from labkit.run.threads import threads_of
from labkit.sensors import PERIODS_S
from labkit.trial import NO_DATA, Trial, trial_from_dict
from labkit.workloads import (
    AnswersQueries,
    BuildsInPhases,
    Prepared,
    ScoresImages,
    TrainsEpochs,
    Workload,
    build_workload,
)

Event = dict[str, Any]

# Before a trial and after it nothing is done for a moment, so that telemetry sees what the devices do without it: for
# two readings of a GPU's slowest sensor, for one of a CPU's.
PAUSES_S = {"cuda": (0.4, 0.2), "cpu": (0.2, 0.1)}
# A large product or copy settles at once and its blocks agree within a percent: a share of a training's time is enough.
CEILING_SHARE = 0.25
# Single queries get time beside that of the blocks: most where they are single images, whose slowest are asked for.
SINGLES_SHARE, QUERIES_SHARE = 2.0, 0.5


def main() -> int:
    """Run the job on stdin."""
    faulthandler.enable()
    events = _Events()
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    events.send(event="hello", details=_framework_details(job["trials"]), startup_s=_since(job["spawned_s"]))
    data = _Data()
    for values in job["trials"]:
        trial = trial_from_dict(values)
        events.send(event="start", key=trial.key)
        outcome = _run(trial, _Job(Timing(**job["timing"]), job["gap_seed"], job["pass_number"]), data, events)
        events.send(event="done", key=trial.key, **outcome)
        if outcome["status"] in ("oom", "crashed"):
            return 3  # what such a trial leaves behind must not reach the next: the runner starts a fresh process
    return 0


class _Job(NamedTuple):
    """What is alike for all trials of this process."""

    timing: Timing
    gap_seed: int
    pass_number: int


def _run(trial: Trial, job: _Job, data: _Data, events: _Events) -> Event:
    """One trial from a clean state to its result, or to the status and reason of its failure."""
    began = time.perf_counter()
    started_at = utc_now()
    phases: dict[str, float] = {}
    before_s, after_s = PAUSES_S[trial.device]
    if trial.energy_windows and trial.device == "cuda":
        after_s += PERIODS_S["energy_j"]  # for one more reading of the energy counter after the last window
    windows = {"idle_before": _pause(before_s)}
    phases["idle"] = before_s
    outcome: Event
    try:
        with threads_of(trial):
            outcome = {"status": "ok", "reason": None, **_measure(trial, job, data, events, phases)}
        windows["after"] = _pause(after_s)
        phases["idle"] += after_s
    except Unsupported as error:
        outcome = _failed("unsupported", str(error))
    except GateError as error:
        outcome = _failed("crashed", f"correctness gate: {error}")
    except LabkitError as error:
        outcome = _failed("crashed", str(error))
    except MemoryError as error:
        outcome = _failed("oom", f"out of memory: {error}")
    except Exception as error:  # noqa: BLE001 - whatever a trial raises becomes its row
        traceback.print_exc()
        outcome = _failed("oom" if is_out_of_memory(error) else "crashed", f"{type(error).__name__}: {error}")
    took = {"started_at": started_at, "wall_s": time.perf_counter() - began, "phases_s": phases}
    return {**outcome, **took, "windows": windows}


def _pause(seconds: float) -> tuple[float, float]:
    """Do nothing for a while: when it was, on the monotonic clock."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _measure(trial: Trial, job: _Job, data: _Data, events: _Events, phases: dict[str, float]) -> Event:
    mark = time.perf_counter()

    def close_phase(name: str) -> None:
        nonlocal mark
        now = time.perf_counter()
        phases[name], mark = now - mark, now

    if trial.framework == "torch":
        # Importing Dynamo takes seconds; but what a compiled trial left in it would stay with the trials that follow.
        if trial.engine not in ("eager", "openvino") or "torch._dynamo" in sys.modules:
            reset_compiler()
        free_memory(trial.device)
    if trial.epochs:  # training runs of different passes start from different weights and orders
        trial = replace(trial, seed=trial.seed + job.pass_number - 1)
    workload = build_workload(trial, data.of(trial))
    if trial.queries and not isinstance(workload, AnswersQueries):
        raise Unsupported(f"the {trial.workload} workload answers no queries")
    if trial.scored and not isinstance(workload, ScoresImages):
        raise Unsupported(f"the {trial.workload} workload scores no images")
    close_phase("build")
    if isinstance(workload, BuildsInPhases):
        phases |= workload.build_phases
        phases["build"] -= sum(workload.build_phases.values())
    if isinstance(workload, Prepared):
        for name, prepare in workload.preparations():
            events.progress(name, 0.0)
            prepare()
            close_phase(name)
    workload.check()
    if workload.read_loss:
        workload.read_loss()  # of the gate's step, which is not part of the warm-up
    close_phase("first_step")
    # The first step is when cuDNN tries its algorithms, some with huge workspaces: not what training needs.
    reset_peak_memory(trial.device)
    clock = CudaClock() if trial.device == "cuda" else HostClock()
    if trial.epochs:
        return _train_epochs(trial, workload, clock, events, phases)
    timing = job.timing
    if workload.images_per_step is None:
        timing = timing.model_copy(update={"warmup_s": timing.warmup_s / 2, "timed_s": timing.timed_s * CEILING_SHARE})
    quiet_collector()
    used = _CpuTime()
    result = time_blocks(
        workload.step,
        clock,
        timing,
        images_per_step=workload.images_per_step,
        flop_per_step=workload.flop_per_step,
        bytes_per_step=workload.bytes_per_step,
        energy_windows=trial.energy_windows,
        gap_seed=job.gap_seed,
        read_loss=workload.read_loss,
        on_block=lambda phase, share: events.progress(phase, share),
    )
    cores_used = used.cores()
    close_phase("blocks")
    phases["warmup"], phases["timed"] = sum(result.warmup_s), result.timed_s
    if trial.queries:
        result = result.model_copy(update={"queries": _ask(trial, workload, clock, timing, events)})
        close_phase("queries")
    if trial.scored:
        assert isinstance(workload, ScoresImages)
        scored = workload.score(lambda share: events.progress("scoring", share))
        result = result.model_copy(update={"scored": scored})
        close_phase("scoring")
    facts = {**peak_memory(trial.device), **workload.facts, "cpu_cores_used": cores_used}
    return {"result": result.model_dump(mode="json"), "facts": facts}


def _ask(trial: Trial, workload: Workload, clock: Clock, timing: Timing, events: _Events) -> Queries:
    """One query after the other, each timed alone, as long as the time for them lasts."""
    assert isinstance(workload, AnswersQueries)
    latencies = time_queries(
        workload.query,
        clock,
        trial.queries,
        limit_s=timing.timed_s * (SINGLES_SHARE if trial.batch == 1 else QUERIES_SHARE),
        on_query=lambda share: events.progress("queries", share),
    )
    return Queries(images=trial.batch, latency_ns=latencies, asked_for=trial.queries)


def _train_epochs(trial: Trial, workload: Workload, clock: Clock, events: _Events, phases: dict[str, float]) -> Event:
    """A whole training run instead of timed blocks."""
    if not isinstance(workload, TrainsEpochs):
        raise Unsupported(f"the {trial.workload} workload does not train whole epochs")
    epochs: list[Epoch] = []
    workload.restart()
    quiet_collector()
    for number in range(trial.epochs):
        steps = workload.steps_of_epoch(number)
        train_s, _ = clock.time_block(workload.step, steps)
        loss = workload.read_loss() if workload.read_loss else None
        began = clock.now_s()
        scores = workload.evaluate()
        epochs.append(
            Epoch(
                steps=steps,
                images=steps * trial.batch,
                train_s=train_s,
                train_loss=loss,
                learning_rate=workload.learning_rate(),
                val_s=clock.now_s() - began,
                val_images=scores.images,
                val_loss=scores.loss,
                top1=scores.top1,
                top5=scores.top5,
            )
        )
        events.progress("epochs", (number + 1) / trial.epochs)
    phases["timed"] = sum(epoch.train_s for epoch in epochs)
    phases["validation"] = sum(epoch.val_s for epoch in epochs)
    result = Epochs(seed=trial.seed, epochs=epochs)
    return {"result": result.model_dump(mode="json"), "facts": {**peak_memory(trial.device), **workload.facts}}


def _failed(status: str, reason: str) -> Event:
    first = " ".join(reason.split()).encode(errors="replace").decode()  # a file name in it may hold what is no text
    return {"status": status, "reason": first[:500]}


def _framework_details(trials: list[dict[str, Any]]) -> dict[str, str]:
    """Versions that only the frameworks themselves can tell."""
    if not any(values.get("framework", "torch") == "torch" for values in trials):
        return {}
    import torch

    details = {"torch_build": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {name: str(value) for name, value in details.items() if value is not None}


def _since(spawned_s: float) -> float:
    """Seconds since the runner spawned this process: the monotonic clock is one for the whole machine."""
    return time.monotonic() - spawned_s


def _die_with_parent() -> None:
    """Block until stdin closes, which it does when the runner ends, however it ends; then end, with all it started."""
    sys.stdin.read()
    if os.getpgrp() == os.getpid():  # the runner made this process the head of its group
        os.killpg(0, signal.SIGKILL)
    os._exit(4)


class _CpuTime:
    """Processor time of this process and its children since it was made."""

    def __init__(self) -> None:
        self._began_s, self._before_s = time.monotonic(), self._now_s()

    @staticmethod
    def _now_s() -> float:
        return sum(os.times()[:4])  # user and system, own and of children that have ended

    def cores(self) -> float:
        """Cores kept busy on average."""
        return (self._now_s() - self._before_s) / (time.monotonic() - self._began_s)


class _Data:
    """The images of a pass, opened once a process."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], DataSet] = {}

    def of(self, trial: Trial) -> DataSet | None:
        """The trial's data set, None for a workload without one."""
        if trial.data == NO_DATA:
            return None
        identity = (trial.data, trial.data_checksum)
        if identity not in self._open:
            self._open[identity] = open_by_checksum(*identity)
        return self._open[identity]


class _Events:
    """The way back to the runner: a copy of stdout made before anything else could print to it."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._last_s = 0.0

    def send(self, **event: Any) -> None:
        """One event, as one line in one write."""
        data = (json.dumps(event, allow_nan=False) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def progress(self, phase: str, share: float) -> None:
        """Twice a second at most."""
        now = time.monotonic()
        if now - self._last_s >= 0.5:
            self._last_s = now
            self.send(event="progress", phase=phase, share=share)


if __name__ == "__main__":
    sys.exit(main())
