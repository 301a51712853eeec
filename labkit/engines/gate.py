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
beside the plain step of its own precision (`compare_beside_exact`): it may be about as far from it as that one is.
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
# Beside FP32, where plain steps of the precision are some way from it: how far they may be for anything to be told; how
# much further than they the tuned ones may be, as a whole and in each weight or statistic; what a weight may not reach,
# as one without its gradient is 1 away; what a statistic may always be off by; by how much more or less all weights may
# move; of the first loss, which no update has touched, how much more than usual is tolerated; and of the later ones the
# part of how far rounding moves the weights, since two roundings may happen to give one loss.
TOO_ROUGH, FURTHER, EACH_FURTHER, MISSING, STATISTIC = 0.6, 1.6, 2.0, 0.95, 0.25
OF_ANOTHER_SIZE, FIRST_LOSS, OF_LOSS = 0.25, 1.5, 0.05

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
    calm(training.model, training.masters())
    training.set_learning_rate(LEARNING_RATE)
    before = _on_host(training)
    losses, seen = [], []
    with _same_dropout(training):
        for _ in range(STEPS):
            loss, images, labels = one_step()
            losses.append(loss.clone())
            seen.append(torch.cat([labels.double(), images.double().sum().view(1)]))
    weights, statistics = (
        [value - old for value, old in zip(*pair, strict=True)] for pair in zip(_on_host(training), before, strict=True)
    )
    return Trace([float(loss) for loss in losses], [one.cpu() for one in seen], weights, statistics)


def _on_host(training: Training) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Weights and running statistics, where they take nothing from the device whose memory is reported."""
    weights, statistics = (
        [value.detach().to("cpu", copy=True) for value in values]
        for values in (training.weights(), training.statistics())
    )
    return weights, statistics


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
    """How far one trace is from another, relative to the other.

    Of each step's loss; of the weights' changes the norm of the difference over the norm of the change, all weights
    together (`change`), and of each weight and running statistic alone, None where it hardly moves; and the norm of
    all changes over the other's (`size`).
    """

    losses: list[float]
    change: float
    weights: list[float | None]
    statistics: list[float | None]
    size: float

    @property
    def loss(self) -> float:
        """The largest of the losses'."""
        return _largest(*self.losses)

    @property
    def worst(self) -> float:
        """That of the weight or statistic that differs most."""
        return _largest(0.0, *(one for one in (*self.weights, *self.statistics) if one is not None))

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
        losses=[abs(p - t) / abs(p) if p else math.inf for p, t in zip(plain.losses, tuned.losses, strict=True)],
        change=math.hypot(*_apart(plain.changes, tuned.changes)) / total if total else math.nan,
        weights=_each(plain.changes, tuned.changes, NEGLIGIBLE * total),
        statistics=_each(plain.statistics, tuned.statistics, 0.0),
        size=math.hypot(*_norms(tuned.changes)) / total if total else math.nan,
    )


def compare(plain: Trace, tuned: Trace, precision: str, found: Differences | None = None) -> dict[str, Any]:
    """The differences beside their tolerances; GateError when a step read other images or computed something else.

    `found` are the two's differences where they are known already: of large networks they take a while.
    """
    found, tolerance = found or differences(plain, tuned), TOLERANCES[precision]
    losses = f": {_shown(tuned.losses)} against {_shown(plain.losses)}"
    whose = "the plain one's"
    _check(f"loss differs from {whose}", found.loss, tolerance.loss, losses)
    _check(f"change of all weights together differs from {whose}", found.change, tolerance.change)
    _check(f"change of a single weight or running statistic differs from {whose}", found.worst, tolerance.worst)
    return _facts((found.loss, tolerance.loss), (found.change, tolerance.change), (found.worst, tolerance.worst))


def compare_beside_exact(exact: Trace, plain: Trace, tuned: Trace, precision: str) -> dict[str, Any]:
    """The same against plain FP32, which the plain step of the trial's precision is beside, each value by its own.

    Of ResNet-18 on digits at batch 16 to 64, BF16 with other last digits (images of other rounding, or compiled) was
    0.6 to 1.6 times as far from FP32 as plain BF16 and its weights moved 0.9 to 1.2 times as far (69 trainings, on a
    CPU). What is not told from rounding there: rates 0.76 to 1.24 times as high, a momentum of 0.8, a wrong label. Half
    the rate, a forgotten momentum and a layer's gradient that is small, lost or of another sign are found.
    """
    if not all(map(math.isfinite, exact.losses)):
        raise GateError(f"the losses of plain FP32 are not finite: {_shown(exact.losses)}")
    own, found, tolerance = _differences(exact, plain), _differences(exact, tuned), TOLERANCES[precision]
    if not own.change <= TOO_ROUGH:
        raise GateError(
            f"rounding to {precision.upper()} alone moves the plain steps by {own.change:.2g} of what they change, so "
            f"nothing tells whether the tuned ones are right: take more images a device, or FP32"
        )
    if not abs(found.size / own.size - 1) <= OF_ANOTHER_SIZE:
        raise GateError(
            f"in {STEPS} steps the checked engine's weights move {found.size / own.size:.2g} times as far as the plain "
            f"one's, more than {OF_ANOTHER_SIZE:.0%} off"
        )
    first, *later = own.losses  # no weight has moved before the first
    losses = [max(FIRST_LOSS * tolerance.loss, first)]
    losses += [max(tolerance.loss, FURTHER * step, OF_LOSS * own.change) for step in later]
    always = min(STATISTIC, tolerance.worst)
    statistics = [None if one is None else max(always, EACH_FURTHER * one) for one in own.statistics]
    # A weight of which rounding alone leaves nothing is judged with all others only.
    weights = [
        None if one is None or one >= MISSING else max(tolerance.worst, min(EACH_FURTHER * one, MISSING))
        for one in own.weights
    ]
    whose = "the plain one's in FP32"
    loss, change = _furthest(found.losses, losses), (found.change, max(tolerance.change, FURTHER * own.change))
    of_weights, of_statistics = _furthest(found.weights, weights), _furthest(found.statistics, statistics)
    _check(f"loss differs from {whose}", *loss, f": {_shown(tuned.losses)} against {_shown(exact.losses)}")
    _check(f"change of all weights together differs from {whose}", *change)
    _check(f"change of a single weight differs from {whose}", *of_weights)
    _check(f"change of a running statistic differs from {whose}", *of_statistics)
    worst = max(of_weights, of_statistics, key=lambda pair: pair[0] / pair[1])
    return _facts(loss, change, worst) | {"against": "plain FP32", "rounding_difference": own.change}


def _furthest(found: Sequence[float | None], most: Sequence[float | None]) -> tuple[float, float]:
    """The difference that is the most of its own limit, and that limit; one that is no number before all others."""
    pairs = [(one, limit) for one, limit in zip(found, most, strict=True) if one is not None and limit is not None]
    return max(pairs, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0] / pair[1], default=(0.0, MISSING))


def _facts(loss: tuple[float, float], change: tuple[float, float], worst: tuple[float, float]) -> dict[str, Any]:
    """Differences beside what is tolerated of them."""
    return {
        "steps": STEPS,
        "loss_difference": loss[0],
        "loss_tolerance": loss[1],
        "change_difference": change[0],
        "change_tolerance": change[1],
        "worst_difference": worst[0],
        "worst_tolerance": worst[1],
    }


def _norms(changes: Sequence[torch.Tensor]) -> list[float]:
    return [float(change.norm()) for change in changes]


def _largest(*values: float) -> float:
    """Not a number when one of them is none: `max` alone would hide it behind an earlier number."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def _apart(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> list[float]:
    return [float((t - p).norm()) for p, t in zip(plain, tuned, strict=True)]


def _each(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor], least: float) -> list[float | None]:
    """Each difference relative to its own plain change; None of those that changed by no more than `least`."""
    apart = zip(_apart(plain, tuned), _norms(plain), strict=True)
    return [None if norm <= least else difference / norm for difference, norm in apart]


def _check(what: str, difference: float, tolerance: float, shown: str = "") -> None:
    if not difference <= tolerance:
        raise GateError(
            f"in {STEPS} steps the checked engine's {what} by {difference:.2g} of it, more than {tolerance:.3g}{shown}"
        )


def _check_what_was_read(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> None:
    for number, (expected, seen) in enumerate(zip(plain, tuned, strict=True), start=1):
        if not torch.equal(expected, seen):
            raise GateError(f"step {number} of the checked engine read other images than the plain one's")
    if len(tuned) > 1 and all(torch.equal(tuned[0], seen) for seen in tuned[1:]):
        raise GateError("every step read the same batch: the data are not fresh")


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)
