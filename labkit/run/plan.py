"""What a study has to measure: the order of each pass, and how long it should take."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from labkit.engines.weights_files import can_train, find_weights, lacked_weights
from labkit.hardware.frameworks import is_keras, missing_from
from labkit.hardware.profile import Timing
from labkit.measure import ENERGY_WINDOW_S, LONGEST_GAP_S, TRACE_LIMIT_S
from labkit.records import Record
from labkit.records.selection import latest
from labkit.run.available import lacked_framework
from labkit.run.nodes import lacked_nodes
from labkit.run.protocol import CEILING_SHARE
from labkit.trial import NO_DATA, Trial

STARTUP_S = 6.0  # of a worker process, and ...
OVERHEAD_S = 3.0  # ... of a trial besides warm-up and blocks, until records of this host say better
# Of a trial that compiles, spread over three passes: about 30 s in the first and 7 s from the cache in later ones.
# Keras on PyTorch compiles forward and backward pass in one, and takes twice as long (on an H200's host, and on CPUs).
COMPILE_S, COMPILE_IN_KERAS_ON_TORCH_S = 15.0, 30.0
IN_KERAS_S = 8.0  # of building in Keras, and of the process that says what PyTorch makes of the first batch
COMPILES = ("compile", "function", "xla")  # how the names of engines begin that compile or trace a whole step
CALIBRATE_S = {"cuda": 3.0, "cpu": 9.0}  # of INT8: ResNet-50's ranges from 1,250 small images
SCORED_PER_S = {"cuda": 20_000, "cpu": 1_000}  # images of 32 px of a scored trial; others by their area
TRAIN_WEIGHTS_S = 4.0  # on a GPU, about 25 s once, spread over three passes of two precisions
REFUSED_S = 0.4  # of a trial that lacks its weights or its framework
TRACE_S = 1.0  # of a traced trial: the profiler's start, and what memory holds; and ...
TRACED_STEP_S = 0.05  # ... of each traced step, with what the profiler wrote of it, until the limit
STEP_BEFORE_S, CAPTURED_BEFORE_S = 0.02, 0.005  # of each step that goes before a trace, eager or replayed
EPOCH_S = {"cuda": 1.0, "cpu": 3.0}  # of a training run, validation included; nobody knows before it has run


def lacked(record: Record) -> bool:
    """Whether a trial was refused for want of weights, nodes or a framework that are here now: it is tried again."""
    return lacked_weights(record) or lacked_nodes(record) or lacked_framework(record)


def order_seed(study: str, scale: str, pass_number: int) -> int:
    """The seed of a pass's order: the same for a pass that is resumed, another for each pass."""
    return int.from_bytes(hashlib.sha256(f"{study}/{scale}/{pass_number}".encode()).digest()[:4], "big")


def order_of_pass(trials: Sequence[Trial], *, study: str, scale: str, pass_number: int) -> list[Trial]:
    """The trials in this pass's random order, so that drift over time falls on no trial in particular."""
    shuffled = list(trials)
    random.Random(order_seed(study, scale, pass_number)).shuffle(shuffled)  # noqa: S311 - not for secrets
    return shuffled


def by_framework(trials: Sequence[Trial], seed: int) -> list[Trial]:
    """The same order, but with a framework's trials together: it has a process of its own. Which comes first is drawn.

    Of one framework nothing changes.
    """
    frameworks = sorted({trial.framework for trial in trials})
    random.Random(seed).shuffle(frameworks)  # noqa: S311 - not for secrets
    return sorted(trials, key=lambda trial: frameworks.index(trial.framework))


def estimate_s(trials: Iterable[Trial], timing: Timing, records: Iterable[Record], scale: str) -> float:
    """Seconds that the trials should take: from this host's earlier records of the scale, else as planned."""
    trials = list(trials)
    return together_s(trials, expected_s(trials, timing, records, scale))


def expected_s(trials: Iterable[Trial], timing: Timing, records: Iterable[Record], scale: str) -> dict[str, float]:
    """Seconds of each trial by its key, without those that its process takes to start."""
    known: dict[str, list[float]] = {}
    for record in latest(records):
        if record.status == "ok" and record.scale == scale:
            known.setdefault(record.key, []).append(record.wall_s)
    return {t.key: median(known[t.key]) if t.key in known else planned_s(t, timing) for t in trials}


def together_s(trials: Sequence[Trial], expected: Mapping[str, float]) -> float:
    """Seconds of trials that follow each other, each framework's in a process of its own."""
    return sum(expected[trial.key] for trial in trials) + STARTUP_S * len({trial.framework for trial in trials})


def planned_s(trial: Trial, timing: Timing) -> float:
    """Seconds of a trial of which nothing is known yet: building, compiling, warm-up, timed part, scoring, trace."""
    if missing_from(trial.framework) and is_keras(trial.framework):
        return REFUSED_S
    once_s = IN_KERAS_S if is_keras(trial.framework) else 0.0
    if trial.engine.startswith(COMPILES):
        once_s += COMPILE_IN_KERAS_ON_TORCH_S if trial.framework == "keras-torch" else COMPILE_S
    once_s += CALIBRATE_S[trial.device] if trial.precision == "int8" else 0.0
    if trial.weights == "trained" and find_weights(trial) is None:
        if not can_train(trial):
            return REFUSED_S
        once_s += TRAIN_WEIGHTS_S
    warmup_s = 0.0 if trial.epochs else timing.warmup_s
    scoring_s = trial.scored / SCORED_PER_S[trial.device] * (trial.image_px / 32) ** 2
    traced_s = min(TRACED_STEP_S * trial.traced_iterations, trial.traced_s or TRACE_LIMIT_S)
    trace_s = TRACE_S + traced_s if trial.traced_iterations else 0.0
    trace_s += trial.steps_before * (CAPTURED_BEFORE_S if "graph" in trial.engine else STEP_BEFORE_S)
    return OVERHEAD_S + once_s + warmup_s + timed_s(trial, timing) + scoring_s + trace_s


def timed_s(trial: Trial, timing: Timing) -> float:
    """Seconds of the timed part, or of all epochs, as planned."""
    if trial.epochs:
        return trial.epochs * EPOCH_S[trial.device]
    if trial.data == NO_DATA:  # a product, a copy or a message
        return timing.timed_s * CEILING_SHARE
    return trial.energy_windows * (ENERGY_WINDOW_S + LONGEST_GAP_S) if trial.energy_windows else timing.timed_s
