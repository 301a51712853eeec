"""The order of the trials in each pass of a study, the trials that a host lacks, and how long they should take."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from labkit.timing import ENERGY_WINDOW_S, LONGEST_GAP_S
from workbook.engines.weights_files import can_train, find_weights
from workbook.hardware.frameworks import is_keras, missing_from
from workbook.hardware.host import Host
from workbook.hardware.matching import mismatch
from workbook.hardware.profile import Profile, Timing
from workbook.records import Record
from workbook.records.selection import done, host_to_show, latest
from workbook.records.shared import read_together
from workbook.registry import SHORT_PASSES
from workbook.runner.protocol import CEILING_SHARE, Pass
from workbook.session import Session
from workbook.trace import TRACE_LIMIT_S
from workbook.trials.trial import NO_DATA, OF_NETWORKS, OWN, Trial, refuse_retired, without_data

# Pixels of a GPU's batch from which its host delays no eager step: 8,192 images of 32 px, or 168 of 224 px. The 95 %
# intervals of three runs of 11 such configurations (an H100, H200s) are within 1.3 %; AlexNet's at 64 of 224 px is 7 %.
FILLING_PX = 2**23
# Estimates in seconds, until records of this host replace them.
STARTUP_S = 6.0  # a worker process's start
RESTART_S = 1.0  # of a further worker, which is forked, with its CUDA context
OVERHEAD_S = 3.0  # a trial besides its warm-up and blocks
# Compiling in the first pass, and from the cache in each later pass. Keras on PyTorch compiles forward and backward
# pass in one, and takes twice as long (on an H200's host, and on CPUs).
COMPILE_S, COMPILED_S = 30.0, 7.0
# Longer for INT8 and FP8 weights of a language model, whose kernels Inductor tunes. On H200s, compiling them takes 91 s
# in the first pass (median; 52 to 410 s) and 17 s in later passes.
TUNE_S, TUNED_S = 60.0, 10.0
# Building in Keras, in the first pass with the process that computes PyTorch's result for the first batch.
IN_KERAS_S, BUILT_IN_KERAS_S = 10.0, 5.0
COMPILES = ("compile", "function", "xla")  # prefixes of the engines that compile or trace a whole step
# INT8 calibration: ResNet-50's ranges from 1,250 small images; on a CPU 10 to 17 s, which three batch sizes share
CALIBRATE_S = {"cuda": 3.0, "cpu": 4.5}
SCORED_PER_S = {"cuda": 20_000, "cpu": 1_000}  # images of 32 px scored per second; other sizes scale by their area
TRAIN_WEIGHTS_S = 6.0  # training weights on a GPU: about 25 s once, spread over the trials that share them
REFUSED_S = 0.4  # a trial that this machine cannot run now
TRACE_S = 1.0  # a traced trial: the profiler's start and the memory measurement
TRACED_STEP_S = 0.05  # each traced step with the analysis of its trace, up to the trial's limit
STEP_BEFORE_S, CAPTURED_BEFORE_S = 0.02, 0.005  # each step before a trace: eager, or replayed as a CUDA graph
EPOCH_S = {"cuda": 1.0, "cpu": 3.0}  # an epoch of a training run with its validation: a guess until it has run once


def passes_of(trial: Trial, full: int, scale: str) -> int:
    """Return a trial's number of passes at a scale with `full` passes; those beyond `full` are short.

    Trials that the host delays have short passes. Energy windows have none, because a short pass measures no energy;
    nor have steps that fill a GPU, and a user's or today's networks on a GPU, most of which do. Scored trials have one
    pass, since every pass would score the same images with the same weights, and sustained trials have one. The number
    follows from the trial alone, never from the interval reached: stopping at a narrow interval would narrow it
    falsely. A scale of one pass has no further passes.
    """
    if trial.scored or trial.is_sustained:
        return 1
    fills_gpu = trial.device == "cuda" and (
        trial.workload in OWN or trial.batch_of_device * trial.image_px**2 >= FILLING_PX
    )
    if full == 1 or not trial.is_host_bound or trial.energy_windows or fills_gpu:
        return full
    return full + SHORT_PASSES.get(scale, {}).get(trial.device, full)


def passes_by_key(trials: Iterable[Trial], profile: Profile, scale: str) -> dict[str, int]:
    """Return the number of passes of each trial at a scale, by the trial's key. UserError as `refuse_retired`."""
    trials = list(trials)
    refuse_retired(trials)
    return {trial.key: passes_of(trial, profile.passes(scale), scale) for trial in trials}


def pass_at(session: Session, study: str, number: int, *, traces: Path | None = None) -> Pass:
    """Return the settings of a study's pass. Passes beyond the profile's number are short. `traces` is their folder."""
    profile, scale = session.profile, session.scale
    timing, short = profile.timing_at(scale), number > profile.passes(scale)
    return Pass(
        number=number,
        timing=timing.shortened() if short else timing,
        gap_seed=order_seed(study, scale, number, session.host.id),
        short=short,
        weights=session.weights,
        network=session.network,
        traces=traces,
    )


def order_seed(study: str, scale: str, pass_number: int, host: str) -> int:
    """Return the seed of a pass's order. A resumed pass gets the same seed; each pass and each host has its own.

    With one order for all hosts, drift over time would favour the same trials on each, and values pooled over hosts
    would keep it.
    """
    return int.from_bytes(hashlib.sha256(f"{study}/{scale}/{pass_number}/{host}".encode()).digest()[:4], "big")


def order_of_pass(trials: Sequence[Trial], seed: int) -> list[Trial]:
    """Return the trials in a pass's random order, so that drift over time favours no trial."""
    shuffled = list(trials)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - not for secrets
    return shuffled


def by_framework(trials: Sequence[Trial], seed: int) -> list[Trial]:
    """Return the trials grouped by framework, since each framework has its own process, in the same order within one.

    The order of the frameworks is random by `seed`.
    """
    frameworks = sorted({trial.framework for trial in trials})
    random.Random(seed).shuffle(frameworks)  # noqa: S311 - not for secrets
    return sorted(trials, key=lambda trial: frameworks.index(trial.framework))


def estimate_s(trials: Iterable[Trial], of_pass: Pass, records: Iterable[Record], scale: str) -> float:
    """Return the seconds of a pass's trials, as `expected_s`, with the start of their processes."""
    trials, records = list(trials), list(records)
    startups_s = [record.process.startup_s for record in records if record.process.startup_s]
    startup_s = median(startups_s) if startups_s else STARTUP_S
    return together_s(trials, expected_s(trials, of_pass, records, scale), of_pass, startup_s)


def expected_s(trials: Iterable[Trial], of_pass: Pass, records: Iterable[Record], scale: str) -> dict[str, float]:
    """Return the expected seconds of each trial by its key, without the start of its process.

    Passes are alike if both are the first, which compiles and checks, or both are short, or both are neither. A trial
    without a record of its own takes as long as on other data: a plan for other hardware knows no data. A trial that
    this machine could not run is expected to be refused again. Without such records, `planned_s` counts at the pace of
    all records, of which those of round 0 are the first. Its small configurations show that a machine is slow, and not
    that it is fast: they hardly compile, and their steps are short.
    """
    trials, wall_s = list(trials), dict[str | Trial, list[float]]()
    records = latest(records) if trials else []
    for record in records:
        alike = (record.pass_number == 1, record.short) == (of_pass.number == 1, of_pass.short)
        if record.status in ("ok", "unsupported") and record.scale == scale and alike:
            for key in (record.key, without_data(record.as_trial)):
                wall_s.setdefault(key, []).append(record.wall_s)
    recorded = {t.key: wall_s.get(t.key) or wall_s.get(without_data(t)) for t in trials}
    least = 0.0 if any(record.scale == scale for record in records) else 1.0
    pace = 1.0 if all(recorded.values()) else max(least, pace_of(records, of_pass))
    return {t.key: median(seconds) if (seconds := recorded[t.key]) else planned_s(t, of_pass, pace) for t in trials}


def pace_of(records: Iterable[Record], of_pass: Pass) -> float:
    """Return the seconds that results took over their planned seconds, both without warm-up and timed part.

    These parts last as long as they are set to, on any machine. Without results the pace is 1.
    """
    took_s = due_s = 0.0
    for record in records:
        timing = of_pass.timing.model_copy(update=record.timing)
        like = of_pass.model_copy(update={"number": record.pass_number, "timing": timing, "short": record.short})
        whole_s, set_s = planned_s(record.as_trial, like), planned_s(record.as_trial, like, 0.0)
        if record.status == "ok" and record.timing and whole_s > set_s:  # a refusal has no such parts
            took_s += max(0.0, record.wall_s - set_s)
            due_s += whole_s - set_s
    return took_s / due_s if due_s else 1.0


def together_s(
    trials: Sequence[Trial], expected: Mapping[str, float], of_pass: Pass, startup_s: float = STARTUP_S
) -> float:
    """Return the seconds of a sequence of trials, with the start of a process per framework and after each trace."""
    starts_s = startup_s * len({trial.framework for trial in trials})
    for trial in filter(of_pass.traces_gpu, trials):  # workers of PyTorch on one device are forked
        is_forked = trial.framework == "torch" and trial.processes == 1
        starts_s += RESTART_S if is_forked else max(startup_s, STARTUP_S)
    return sum(expected[trial.key] for trial in trials) + starts_s


def planned_s(trial: Trial, of_pass: Pass, pace: float = 1.0) -> float:
    """Return the seconds of a trial without records: building, compiling, warm-up, timed part, scoring and trace.

    All but the warm-up and the timed part change with the machine's `pace`.
    """
    if missing_from(trial.framework) and is_keras(trial.framework):
        return REFUSED_S
    first, timing = of_pass.number == 1, of_pass.timing
    trial = trial.only_timed() if of_pass.short else trial
    once_s = 0.0
    if is_keras(trial.framework):
        once_s += IN_KERAS_S if first else BUILT_IN_KERAS_S
    if trial.engine.startswith(COMPILES):
        compile_s = COMPILE_S if first else COMPILED_S
        once_s += 2 * compile_s if trial.framework == "keras-torch" else compile_s
        if trial.workload in OWN and trial.precision in ("int8", "fp8"):
            once_s += TUNE_S if first else TUNED_S
    once_s += CALIBRATE_S[trial.device] if (trial.workload, trial.precision) == ("infer", "int8") else 0.0
    if trial.weights == "trained" and find_weights(trial, of_pass.weights) is None:
        if not can_train(trial):
            return REFUSED_S
        once_s += TRAIN_WEIGHTS_S if first else 0.0
    set_s = timing.warmup_s + timed_s(trial, timing)
    if trial.epochs:
        once_s, set_s = once_s + timed_s(trial, timing), 0.0
    scoring_s = trial.scored / SCORED_PER_S[trial.device] * (trial.image_px / 32) ** 2
    traced_s = min(TRACED_STEP_S * trial.traced_iterations, trial.traced_s or TRACE_LIMIT_S)
    trace_s = TRACE_S + traced_s if trial.traced_iterations else 0.0
    trace_s += trial.steps_before * (CAPTURED_BEFORE_S if "graph" in trial.engine else STEP_BEFORE_S)
    return pace * (OVERHEAD_S + once_s + scoring_s + trace_s) + set_s


def timed_s(trial: Trial, timing: Timing) -> float:
    """Return the planned seconds of the timed part, or of all epochs."""
    if trial.epochs:
        return trial.epochs * EPOCH_S[trial.device]
    if trial.energy_windows:
        return trial.energy_windows * (ENERGY_WINDOW_S + LONGEST_GAP_S)
    is_ceiling = trial.data == NO_DATA and trial.workload not in OF_NETWORKS  # a product, a copy or a message
    return timing.timed_s * CEILING_SHARE if is_ceiling else timing.timed_s


class Missing(NamedTuple):
    """The number of trials of a pass left to measure, and the seconds that they should take."""

    trials: int
    seconds: float


def what_is_missing(
    trials: Sequence[Trial],
    study: str,
    session: Session,
    *,
    anew: bool = False,
    earlier: frozenset[str] = frozenset(),
) -> dict[int, Missing]:
    """Return what this host has not measured yet of the trials, by pass.

    With `anew`, count the study's own records as missing. `earlier` are the keys that earlier studies of a report
    measure. On a host without the profile's hardware, the seconds are those of the host whose records pages show.
    """
    profile, host, store, scale = session.profile, session.host, session.store, session.scale
    passes = passes_by_key(trials, profile, scale)
    records = read_together(store, study, host.id, scale=scale, planned=passes).records
    records = [record for record in records if not (anew and record.study == study)]
    finished = finished_pairs(records, scale, host)
    if mismatch(profile, host) and (shown := host_to_show(store, study, None)):
        records = read_together(store, study, shown).records
    own = [trial for trial in trials if trial.key not in earlier]
    missing = {}
    for number in range(1, max(passes.values(), default=0) + 1):
        of_pass = [trial for trial in own if number <= passes[trial.key] and (trial.key, number) not in finished]
        seconds = estimate_s(of_pass, pass_at(session, study, number), records, scale)
        missing[number] = Missing(len(of_pass), seconds)
    return missing


def finished_pairs(records: Iterable[Record], scale: str, host: Host) -> set[tuple[str, int]]:
    """Return the (key, pass) pairs that this host measured, or that it cannot run in any state."""
    return done(records, scale=scale, versions=host.framework_versions(), source=host.source)
