"""Does a tuned step compute what the plain one computes? A few steps of both, from the same weights.

plain    eager, FP32 weights, PyTorch's own SGD; in the trial's own precision (autocast) and memory format
tuned    whatever the trial's engine and optimiser make of it; DataParallel, beside the batch's parts on one device

Compared are what each step read, its loss, how far every weight moved, and every running mean and variance. Both draw
the same dropout, since both start from one state of the random generator.

At its initial weights a ResNet on 32x32 images magnifies rounding beyond use: on an H200 the first gradient of plain
BF16 differs from that of plain FP32 by 1.2 of its norm, as two random directions do by 1.4. So the gate weakens what
magnifies it (`damping`, in both) and takes small steps. Rounding to BF16 then changed no weight's gradient by
more than 0.35 of its own norm (ResNet-18, 50 and 152, on a CPU), and a gradient that is missing, of another batch or of
the wrong sign is 1 and more away. What stays below any tolerance is weight decay: the update has a test of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from labkit.engines.damping import calm
from labkit.engines.precision import TOLERANCES
from labkit.engines.training import Training
from labkit.errors import GateError

STEPS = 3
LEARNING_RATE = 1e-3
NEGLIGIBLE = 1e-5  # of the whole change: a weight that moves less is not judged on its own

Step = Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Trace:
    """What a few steps did: the losses, what each read, every weight's change and every running statistic's (FP32)."""

    losses: list[float]
    seen: list[torch.Tensor]
    changes: list[torch.Tensor]
    statistics: list[torch.Tensor]


def trace(training: Training, one_step: Step, *, seed: int) -> Trace:
    """Run a few steps of a training that is at its beginning; `one_step` gives loss, images and labels.

    Nothing waits for the device between the steps, so that one which overwrites what the last still reads is found.
    """
    torch.manual_seed(seed)
    weights, statistics = training.weights(), training.statistics()
    calm(training.model, weights)
    training.set_learning_rate(LEARNING_RATE)
    before = [value.clone() for value in (*weights, *statistics)]
    losses, seen = [], []
    with _same_dropout(training):
        for _ in range(STEPS):
            loss, images, labels = one_step()
            losses.append(loss.clone())
            seen.append(torch.cat([labels.double(), images.double().sum().view(1)]))
    # On the host, where it takes nothing from the device whose memory is reported.
    after = (*training.weights(), *training.statistics())
    changes = [(value - old).cpu() for value, old in zip(after, before, strict=True)]
    whole = len(weights)
    return Trace([float(loss) for loss in losses], [one.cpu() for one in seen], changes[:whole], changes[whole:])


@contextmanager
def _same_dropout(training: Training) -> Iterator[None]:
    """Without dropout where several devices would draw it, each from random numbers of its own."""
    several = training.trial.parallel == "one_process"
    drawing = [one for one in training.model.modules() if several and isinstance(one, nn.Dropout)]
    try:
        for one in drawing:
            one.eval()
        yield
    finally:
        for one in drawing:
            one.train(training.model.training)


def compare(plain: Trace, tuned: Trace, precision: str) -> dict[str, Any]:
    """The differences beside their tolerances; GateError when a step read other images or computed something else.

    All are relative: of the losses the largest difference; of the weights' changes the norm of the difference over the
    norm of the plain change, all weights together; and the same of the single weight or statistic that differs most.
    """
    tolerance = TOLERANCES[precision]
    _check_what_was_read(plain.seen, tuned.seen)
    if not all(map(math.isfinite, [*plain.losses, *tuned.losses])):
        raise GateError(f"losses are not finite: plain {_shown(plain.losses)}, tuned {_shown(tuned.losses)}")
    of_loss = max(abs(p - t) / abs(p) for p, t in zip(plain.losses, tuned.losses, strict=True))
    moved = [float(change.norm()) for change in plain.changes]
    still = [i for i, change in enumerate(tuned.changes) if moved[i] > 0 and not bool(change.any())]
    if still:
        raise GateError(f"{len(still)} of {len(moved)} weights did not move in {len(tuned.losses)} tuned steps")
    total = math.hypot(*moved)
    of_change = math.hypot(*_apart(plain.changes, tuned.changes)) / total if total else math.nan
    of_weights = _worst(plain.changes, tuned.changes, NEGLIGIBLE * total)
    of_statistics = _worst(plain.statistics, tuned.statistics, 0.0)
    _check("loss", of_loss, tolerance.loss, f": {_shown(tuned.losses)} against {_shown(plain.losses)}")
    _check("change of all weights together", of_change, tolerance.change)
    for difference in (of_weights, of_statistics):
        _check("change of a single weight or running statistic", difference, tolerance.worst)
    return {
        "steps": len(plain.losses),
        "loss_difference": of_loss,
        "loss_tolerance": tolerance.loss,
        "change_difference": of_change,
        "change_tolerance": tolerance.change,
        "worst_difference": max(of_weights, of_statistics),
        "worst_tolerance": tolerance.worst,
    }


def _apart(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> list[float]:
    return [float((t - p).norm()) for p, t in zip(plain, tuned, strict=True)]


def _worst(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor], least: float) -> float:
    """The largest difference relative to its own plain change, of those that changed by more than `least`.

    Not a number when one of them is none: `max` alone would hide it behind an earlier number.
    """
    norms = [float(change.norm()) for change in plain]
    of_own = [a / norm for a, norm in zip(_apart(plain, tuned), norms, strict=True) if norm > least]
    return math.nan if any(map(math.isnan, of_own)) else max(of_own, default=0.0)


def _check(what: str, difference: float, tolerance: float, shown: str = "") -> None:
    if not difference <= tolerance:
        raise GateError(
            f"in {STEPS} steps the tuned engine's {what} differs from the plain one's by {difference:.2g} of it, more "
            f"than {tolerance:g}{shown}"
        )


def _check_what_was_read(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> None:
    for number, (expected, seen) in enumerate(zip(plain, tuned, strict=True), start=1):
        if not torch.equal(expected, seen):
            raise GateError(f"step {number} of the tuned engine read other images than the plain one's")
    if len(tuned) > 1 and all(torch.equal(tuned[0], seen) for seen in tuned[1:]):
        raise GateError("every step read the same batch: the data are not fresh")


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)
