"""Runs one trial from a clean state to its result, or to the status and reason of its failure."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from labkit.errors import LabkitError
from labkit.sensors import PERIODS_S
from labkit.timing import Clock, CudaClock, HostClock, time_blocks
from workbook import ranks
from workbook.engines.keras.back_end import peak_memory_of_keras
from workbook.engines.state import peak_memory, quiet_collector
from workbook.errors import GateError, Unsupported, is_out_of_memory
from workbook.hardware.frameworks import is_keras
from workbook.records import Blocks, Epoch, Epochs, utc_now
from workbook.runner.afterwards import asked_of_answers, asked_of_steps
from workbook.runner.preparing import Data, prepared_workload
from workbook.runner.protocol import CEILING_SHARE, Events, Pass, without_paths
from workbook.runner.reading import read_epochs
from workbook.runner.threads import threads_of
from workbook.trials.trial import NO_DATA, OF_NETWORKS, Trial
from workbook.workloads import Workload

Event = dict[str, Any]

# Idle seconds before and after a trial, in which telemetry reads the devices without load. The first lasts for two
# readings of a GPU's slowest sensor, or one of a CPU's.
PAUSES_S = {"cuda": (0.4, 0.2), "cpu": (0.2, 0.1)}
OF_FIRST_STEP = ("trace", "compile", "first_step")  # phases of Keras's trials; some back ends join two of them
BURST = 3000  # tiny operations of a burst between blocks: about 25 ms on a GPU's host
TRACEBACK_CHARACTERS = 4000  # kept from the end of a traceback, which says most


def run(trial: Trial, of_pass: Pass, data: Data, events: Events, *, gate_passed: bool = False) -> Event:
    """Run a trial from a clean state. Return its result or the reason of its failure, with phases and windows.

    `gate_passed`: the trial passed its gate earlier on this machine with this code, and is not compared again.
    """
    began = time.perf_counter()
    started_at = utc_now()
    phases: dict[str, float] = {}
    before_s, after_s = PAUSES_S[trial.device]
    if trial.energy_windows and trial.device == "cuda":
        after_s += PERIODS_S["energy_j"]  # so that the energy counter is read once more after the last window
    windows = {"idle_before": _pause(before_s)}
    if team := ranks.team():
        team.barrier()  # up to this point the other ranks leave their devices idle
    phases["idle"] = before_s
    outcome: Event
    try:
        with threads_of(trial), ExitStack() as at_end:
            measured = _measure(trial, of_pass, data, events, phases, gate_passed, at_end)
            outcome = {"status": "ok", "reason": None, **measured}
        if team:
            team.announce(0)
        windows["after"] = _pause(after_s)
        phases["idle"] += after_s
    except Exception as error:  # noqa: BLE001 - whatever a trial raises becomes its row
        outcome = failure(error)
    took = {"started_at": started_at, "wall_s": time.perf_counter() - began, "phases_s": phases}
    return {**outcome, **took, "windows": windows}


def follow(trial: Trial, of_pass: Pass, data: Data, *, gate_passed: bool = False) -> None:
    """Run a trial's preparations and steps on a rank other than 0, without timing them.

    Raise Unsupported if the ranks agree that the trial is unsupported.
    """
    team = ranks.team()
    assert team is not None
    team.barrier()
    with threads_of(trial), ExitStack() as at_end:
        quiet: list[Any] = [lambda _phase: None, lambda _name: None]
        workload, _ = prepared_workload(trial, of_pass.number, data, *quiet, gate_passed=gate_passed)
        at_end.callback(workload.close)
        clock = _clock(trial, workload)
        quiet_collector()
        if trial.epochs and workload.stored:
            read_epochs(trial, workload, clock, lambda _share: None)
        elif trial.epochs:
            workload.restart()
        while steps := team.hear():
            clock.time_block(workload.step, steps)
            if workload.read_loss:
                workload.read_loss()


def failure(error: BaseException) -> Event:
    """Return status and reason of a trial that raised, and the traceback of an unexpected exception."""
    if isinstance(error, Unsupported):
        return {**_failed("unsupported", str(error)), "cause": error.cause}
    if isinstance(error, GateError):
        return _failed("crashed", f"correctness gate: {error}")
    if isinstance(error, LabkitError):
        return _failed("crashed", str(error))
    if isinstance(error, MemoryError):
        return _failed("oom", f"out of memory: {error}")
    traceback.print_exc()
    outcome = _failed("oom" if is_out_of_memory(error) else "crashed", f"{type(error).__name__}: {error}")
    return {**outcome, "facts": {"traceback": without_paths(traceback.format_exc())[-TRACEBACK_CHARACTERS:]}}


def _pause(seconds: float) -> tuple[float, float]:
    """Sleep for `seconds`. Return start and end on the monotonic clock."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _measure(
    trial: Trial,
    of_pass: Pass,
    data: Data,
    events: Events,
    phases: dict[str, float],
    gate_passed: bool,
    at_end: ExitStack,
) -> Event:
    mark = time.perf_counter()

    def close_phase(name: str) -> None:
        nonlocal mark
        now = time.perf_counter()
        phases[name], mark = phases.get(name, 0.0) + now - mark, now

    workload, trial = prepared_workload(
        trial,
        of_pass.number,
        data,
        close_phase,
        lambda name: events.progress(name, 0.0),
        gate_passed=gate_passed,
    )
    at_end.callback(workload.close)
    phases |= workload.build_phases
    phases["build"] -= sum(workload.build_phases.values())
    clock = _clock(trial, workload)
    if trial.epochs and workload.stored:
        return _read_epochs(trial, workload, clock, events, phases)
    if trial.epochs:
        return _train_epochs(trial, workload, clock, events, phases)
    timing = of_pass.timing
    if workload.images_per_step is None:
        timing = timing.model_copy(update={"warmup_s": timing.warmup_s / 2, "timed_s": timing.timed_s * CEILING_SHARE})
    quiet_collector()
    began_s, cpu_before_s = time.monotonic(), _cpu_time_s()
    times = time_blocks(
        workload.step,
        clock,
        timing,
        images_per_step=workload.images_per_step,
        flop_per_step=workload.flop_per_step,
        bytes_per_step=workload.bytes_per_step,
        launches_per_step=workload.launches_per_step,
        energy_windows=trial.energy_windows,
        gap_seed=of_pass.gap_seed,
        read_loss=workload.read_loss,
        on_block=lambda phase, share: events.progress(phase, share),
        burst=burst_of(trial, clock) if has_bursts(trial, of_pass) else None,
    )
    cores_used = (_cpu_time_s() - cpu_before_s) / (time.monotonic() - began_s)
    close_phase("blocks")
    phases["warmup"], phases["timed"] = sum(times.warmup_s), times.timed_s
    result = asked_of_answers(trial, workload, clock, Blocks(**times.model_dump()), timing, events, close_phase)
    facts = {**_peak_memory(trial), **workload.facts, "cpu_cores_used": cores_used}
    if is_keras(trial.framework):
        facts |= {"build_s": phases["build"], "first_step_s": sum(phases.get(name, 0.0) for name in OF_FIRST_STEP)}
    result, of_steps = asked_of_steps(trial, workload, clock, result, of_pass, events, close_phase)
    facts |= of_steps
    return {"result": result.model_dump(mode="json"), "facts": facts}


def has_bursts(trial: Trial, of_pass: Pass) -> bool:
    """Return whether bursts of tiny operations lie between the blocks: in short passes of eager PyTorch on one GPU."""
    eager = trial.engine == "eager" and trial.framework == "torch"
    timed_network = trial.workload in OF_NETWORKS and not trial.epochs
    one_gpu = trial.device == "cuda" and trial.devices == trial.processes == 1
    # With a reader there are none: its buffers would fill during a burst.
    return of_pass.short and eager and timed_network and one_gpu and trial.form == "embedded"


def burst_of(trial: Trial, clock: Clock) -> Callable[[], float]:
    """Return a function that measures the launch rate, in tiny operations per second, on the trial's device.

    The device is idle at both ends of a burst.
    """
    from workbook.workloads.launch_rate import build

    tiny = build(Trial(workload="launch_rate", size=BURST, device=trial.device, data=NO_DATA), None)
    tiny.check()  # loads the kernel, which is no part of a burst
    return lambda: BURST / clock.time_block(tiny.step, 1)[0]


def _cpu_time_s() -> float:
    """Return the processor time in seconds of this process and of its ended children."""
    return sum(os.times()[:4])


def _peak_memory(trial: Trial) -> dict[str, Any]:
    """Return the peak memory from the counter of the trial's framework."""
    if is_keras(trial.framework):
        return {**peak_memory_of_keras(trial.framework, trial.device)}
    return peak_memory(trial.device)


def _clock(trial: Trial, workload: Workload) -> Clock:
    """Return the clock of the trial's device or framework; in a team, a TeamClock, which starts blocks on all ranks."""
    if workload.wait:
        return HostClock(workload.wait)
    clock = CudaClock() if trial.device == "cuda" else HostClock()
    team = ranks.team()
    return clock if team is None else ranks.TeamClock(clock, team)


def _train_epochs(trial: Trial, workload: Workload, clock: Clock, events: Events, phases: dict[str, float]) -> Event:
    """Train and validate `trial.epochs` whole epochs. Return the run's result and facts."""
    assert workload.evaluate and workload.learning_rate
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
                images=steps * trial.batch_of_step,
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
    return {"result": result.model_dump(mode="json"), "facts": {**_peak_memory(trial), **workload.facts}}


def _read_epochs(trial: Trial, workload: Workload, clock: Clock, events: Events, phases: dict[str, float]) -> Event:
    """Run epochs over images in files. Return their result and facts."""
    quiet_collector()
    began = time.perf_counter()
    result = read_epochs(trial, workload, clock, lambda share: events.progress("epochs", share))
    phases["timed"] = sum(epoch.seconds for epoch in result.epochs)
    phases["fill"] = time.perf_counter() - began - phases["timed"]  # of the page cache, or its emptying
    return {"result": result.model_dump(mode="json"), "facts": {**_peak_memory(trial), **workload.facts}}


def _failed(status: str, reason: str) -> Event:
    first = " ".join(reason.split()).encode(errors="replace").decode()  # a file name may hold bytes that are no text
    return {"status": status, "reason": first[:500]}
