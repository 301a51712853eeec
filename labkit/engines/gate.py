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

Few images that are much alike (the digits, 32 a device) magnify rounding all the same: plain BF16 itself is then up to
0.5 of the change from plain FP32. So a step in a narrow precision that is beyond the tolerances is held against FP32,
beside the plain step of its own precision (`compare_beside_exact`): it may be no further from it than that one is.
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
from labkit.engines.precision import TOLERANCES, Tolerance
from labkit.engines.training import Training
from labkit.errors import GateError

STEPS = 3
LEARNING_RATE = 1e-3
NEGLIGIBLE = 1e-5  # of the whole change: a weight that moves less is not judged on its own
# Beside FP32: how much rounding still lets anything be told; how much further than the plain step the tuned one may be,
# and a single weight of it, which may not reach 1, as one without its gradient does; by how much more or less its
# weights may move; and what part of how far rounding moves the weights the losses may differ by, which are three
# numbers and near to or far from each other by chance.
TOO_ROUGH, FURTHER, WORST_FURTHER, MISSING, OF_ANOTHER_SIZE, OF_LOSS = 0.6, 1.4, 2.0, 0.95, 0.25, 0.05

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


@dataclass(frozen=True)
class Differences:
    """How far one trace is from another, relative to the other: of the losses the largest difference; of the weights'
    changes the norm of the difference over the norm of the change, all weights together (`change`); the same of the
    single weight or running statistic that differs most (`worst`); and the norm of all changes over the other's.
    """

    loss: float
    change: float
    worst: float
    size: float

    def within(self, tolerance: Tolerance) -> bool:
        """Whether nothing is further than tolerated. What is no number is not."""
        beside = ((self.loss, tolerance.loss), (self.change, tolerance.change), (self.worst, tolerance.worst))
        return all(difference <= most for difference, most in beside)


def differences(plain: Trace, tuned: Trace) -> Differences:
    """How far the tuned steps are from the plain ones.

    GateError where no rounding can be the reason: a step read other images, a loss is not finite, a weight stood still.
    """
    _check_what_was_read(plain.seen, tuned.seen)
    if not all(map(math.isfinite, [*plain.losses, *tuned.losses])):
        raise GateError(f"losses are not finite: plain {_shown(plain.losses)}, tuned {_shown(tuned.losses)}")
    still = [
        i for i, (p, t) in enumerate(zip(plain.changes, tuned.changes, strict=True)) if bool(p.any()) and not t.any()
    ]
    if still:
        raise GateError(f"{len(still)} of {len(plain.changes)} weights did not move in {len(tuned.losses)} tuned steps")
    return _differences(plain, tuned)


def _differences(plain: Trace, tuned: Trace) -> Differences:
    total = math.hypot(*_norms(plain.changes))
    return Differences(
        loss=max(abs(p - t) / abs(p) for p, t in zip(plain.losses, tuned.losses, strict=True)),
        change=math.hypot(*_apart(plain.changes, tuned.changes)) / total if total else math.nan,
        worst=_largest(
            _worst(plain.changes, tuned.changes, NEGLIGIBLE * total), _worst(plain.statistics, tuned.statistics, 0.0)
        ),
        size=math.hypot(*_norms(tuned.changes)) / total if total else math.nan,
    )


def compare(plain: Trace, tuned: Trace, precision: str, found: Differences | None = None) -> dict[str, Any]:
    """The differences beside their tolerances; GateError when a step read other images or computed something else.

    `found` are the two's differences where they are known already: of large networks they take a while.
    """
    return _judged(found or differences(plain, tuned), TOLERANCES[precision], plain, tuned, "the plain one's")


def compare_beside_exact(exact: Trace, plain: Trace, tuned: Trace, precision: str) -> dict[str, Any]:
    """The same against the plain step in FP32, which the plain step of the trial's precision is beside.

    Over 24 trainings (ResNet-18 on digits, batch 16 to 64, on a CPU) compiled BF16 was 0.6 to 1.24 times as far from
    FP32 as plain BF16, in its worst weight 0.6 to 1.42 times, and its weights moved 0.92 to 1.19 times as far; a
    forgotten momentum or half the rate makes that a half.
    """
    own, found, tolerance = _differences(exact, plain), _differences(exact, tuned), TOLERANCES[precision]
    if not own.change <= TOO_ROUGH:
        raise GateError(
            f"rounding to {precision.upper()} alone moves the plain steps by {own.change:.2g} of what they change, so "
            f"nothing tells whether the tuned ones are right: take more images a device, or FP32"
        )
    if not abs(found.size / own.size - 1) <= OF_ANOTHER_SIZE:
        raise GateError(
            f"in {STEPS} steps the tuned engine's weights move {found.size / own.size:.2g} times as far as the plain "
            f"one's, more than {OF_ANOTHER_SIZE:.0%} off"
        )
    wider = Tolerance(
        loss=max(tolerance.loss, FURTHER * own.loss, OF_LOSS * own.change),
        change=max(tolerance.change, FURTHER * own.change),
        worst=max(tolerance.worst, min(WORST_FURTHER * own.worst, MISSING)),
    )
    judged = _judged(found, wider, exact, tuned, "the plain one's in FP32")
    return judged | {"against": "plain FP32", "rounding_difference": own.change}


def _judged(found: Differences, tolerance: Tolerance, plain: Trace, tuned: Trace, whose: str) -> dict[str, Any]:
    losses = f": {_shown(tuned.losses)} against {_shown(plain.losses)}"
    _check(f"loss differs from {whose}", found.loss, tolerance.loss, losses)
    _check(f"change of all weights together differs from {whose}", found.change, tolerance.change)
    _check(f"change of a single weight or running statistic differs from {whose}", found.worst, tolerance.worst)
    return {
        "steps": len(plain.losses),
        "loss_difference": found.loss,
        "loss_tolerance": tolerance.loss,
        "change_difference": found.change,
        "change_tolerance": tolerance.change,
        "worst_difference": found.worst,
        "worst_tolerance": tolerance.worst,
    }


def _norms(changes: Sequence[torch.Tensor]) -> list[float]:
    return [float(change.norm()) for change in changes]


def _largest(*values: float) -> float:
    """Not a number when one of them is none: `max` alone would hide it behind an earlier number."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def _apart(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> list[float]:
    return [float((t - p).norm()) for p, t in zip(plain, tuned, strict=True)]


def _worst(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor], least: float) -> float:
    """The largest difference relative to its own plain change, of those that changed by more than `least`."""
    apart = zip(_apart(plain, tuned), _norms(plain), strict=True)
    return _largest(0.0, *(difference / norm for difference, norm in apart if norm > least))


def _check(what: str, difference: float, tolerance: float, shown: str = "") -> None:
    if not difference <= tolerance:
        raise GateError(
            f"in {STEPS} steps the tuned engine's {what} by {difference:.2g} of it, more than {tolerance:.3g}{shown}"
        )


def _check_what_was_read(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> None:
    for number, (expected, seen) in enumerate(zip(plain, tuned, strict=True), start=1):
        if not torch.equal(expected, seen):
            raise GateError(f"step {number} of the tuned engine read other images than the plain one's")
    if len(tuned) > 1 and all(torch.equal(tuned[0], seen) for seen in tuned[1:]):
        raise GateError("every step read the same batch: the data are not fresh")


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)
