"""Does a tuned step compute what the plain one computes? A few steps of both, from the same weights.

plain    eager, FP32 weights, PyTorch's own SGD; in the trial's own precision (autocast) and memory format
tuned    whatever the trial's engine and optimiser make of it; DataParallel, beside the batch's parts on one device

The gate compares what each step read, its loss, how far every weight moved, and every running mean and variance. Both
draw the same dropout, since both start from one state of the random generator.

At its initial weights a ResNet on 32x32 images magnifies rounding: on an H200 the first gradients of plain BF16 and
plain FP32 differ by 1.2 of their norm, two random directions by 1.4. So the gate weakens what magnifies rounding, in
both (`damping`), and takes small steps. Rounding to BF16 then changed no weight's gradient by more than 0.35 of its
norm (ResNet-18, 50 and 152, on a CPU); a gradient that is missing, of another batch or of the wrong sign is 1 and more
away. Weight decay stays below any tolerance: the update has a test of its own.

Few images that are much alike (the digits, 32 a device) magnify rounding all the same: plain BF16 is then up to 0.5 of
the change from plain FP32. So a step in a narrow precision that is beyond the tolerances is held against FP32, beside
the plain step of its own precision (`compare_beside_exact`), and may be about as far from FP32 as that step is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from labkit.engines.damping import calm
from labkit.engines.precision import TOLERANCES, Tolerance
from labkit.engines.tolerated import Difference, checked
from labkit.engines.training import Training
from labkit.errors import GateError

STEPS = 3
LEARNING_RATE = 1e-3
NEGLIGIBLE = 1e-5  # of the whole change: a weight that moves less is not judged on its own
# Limits beside FP32, relative to how far the plain steps of the trial's precision are from it.
TOO_ROUGH = 0.6  # plain steps that are further away tell nothing
FURTHER, EACH_FURTHER = 1.6, 2.0  # how much further the tuned steps may be: all weights, each weight or statistic
MISSING = 0.95  # the most of a single weight: without its gradient it is 1 away
STATISTIC = 0.25  # what a statistic may always be off by
OF_ANOTHER_SIZE = 0.25  # how much more or less all weights may move
FIRST_LOSS = 1.5  # times the usual tolerance, of the loss that no update has touched
OF_LOSS = 0.05  # of the weights' difference, for later losses: two roundings may happen to give one loss

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

    Nothing waits for the device between the steps, so a step that overwrites what the last still reads is found.
    """
    torch.manual_seed(seed)
    calm(training.model, training.masters())
    training.set_learning_rate(LEARNING_RATE)
    before = _on_host(training)
    # Several devices would draw dropout from random numbers of their own, so nothing is dropped there.
    several = training.trial.parallel == "one_process"
    dropouts = [layer for layer in training.model.modules() if several and isinstance(layer, nn.Dropout)]
    for layer in dropouts:
        layer.eval()
    losses, seen = [], []
    for _ in range(STEPS):
        loss, images, labels = one_step()
        losses.append(loss.clone())
        seen.append(torch.cat([labels.double(), images.double().sum().view(1)]))
    for layer in dropouts:
        layer.train()
    weights, statistics = (
        [value - old for value, old in zip(*pair, strict=True)] for pair in zip(_on_host(training), before, strict=True)
    )
    return Trace([float(loss) for loss in losses], [read.cpu() for read in seen], weights, statistics)


def _on_host(training: Training) -> list[list[torch.Tensor]]:
    """Weights and running statistics, where they take nothing from the device whose memory is reported."""
    both = (training.weights(), training.statistics())
    return [[value.detach().to("cpu", copy=True) for value in values] for values in both]


@dataclass(frozen=True)
class Differences:
    """How far one trace is from another, relative to the other: each loss, and the weights' changes.

    `change` is the norm of the difference over the norm of the change, of all weights together. `weights` and
    `statistics` have the same of each alone, None where it hardly moves. `size` is the ratio of both norms.
    """

    losses: list[float]
    change: float
    weights: list[float | None]
    statistics: list[float | None]
    size: float

    def furthest(self, limits: Differences) -> dict[str, Difference]:
        """Of losses, of all weights together and of single values, the difference that is the most of its own limit."""
        of_weights = _furthest("change of a single weight", self.weights, limits.weights)
        of_statistics = _furthest("change of a running statistic", self.statistics, limits.statistics)
        return {
            "loss": _furthest("loss", self.losses, limits.losses),
            "change": ("change of all weights together", self.change, limits.change),
            "worst": max(of_weights, of_statistics, key=_share),
        }

    def within(self, tolerance: Tolerance) -> bool:
        """Whether nothing is further than tolerated. A difference that is not a number is."""
        return all(found <= most for _, found, most in self.furthest(_alike(self, tolerance)).values())


def _alike(found: Differences, tolerance: Tolerance) -> Differences:
    """The same limit for every loss, and another for every weight and statistic."""
    losses = [tolerance.loss] * len(found.losses)
    weights, statistics = ([tolerance.worst] * len(values) for values in (found.weights, found.statistics))
    return Differences(losses, tolerance.change, [*weights], [*statistics], size=math.nan)


def _furthest(what: str, found: Sequence[float | None], limits: Sequence[float | None]) -> Difference:
    pairs = zip(found, limits, strict=True)
    judged = [(what, one, most) for one, most in pairs if one is not None and most is not None]
    return max(judged, key=_share, default=(what, 0.0, MISSING))


def _share(difference: Difference) -> float:
    """Of its limit; a difference that is not a number comes before all others."""
    _, found, most = difference
    return math.inf if math.isnan(found) else found / most


def differences(plain: Trace, tuned: Trace) -> Differences:
    """How far the tuned steps are from the plain ones.

    GateError where no rounding can be the reason: a step read other images, a loss is not finite, a weight stood still.
    """
    check_what_was_read({"images": plain.seen}, {"images": tuned.seen}, "step")
    if not all(map(math.isfinite, [*plain.losses, *tuned.losses])):
        raise GateError(f"losses are not finite: plain {_shown(plain.losses)}, tuned {_shown(tuned.losses)}")
    pairs = zip(plain.changes, tuned.changes, strict=True)
    if still := sum(bool(p.any()) and not t.any() for p, t in pairs):
        raise GateError(f"{still} of {len(plain.changes)} weights did not move in {len(tuned.losses)} tuned steps")
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
    found = found or differences(plain, tuned)
    return _judge(found, _alike(found, TOLERANCES[precision]), "the plain one's", plain, tuned)


def compare_beside_exact(exact: Trace, plain: Trace, tuned: Trace, precision: str) -> dict[str, Any]:
    """The same against plain FP32: each value may differ about as much as the plain step of the trial's precision does.

    Of ResNet-18 on digits at batch 16 to 64, BF16 with other last digits (images of other rounding, or compiled) was
    0.6 to 1.6 times as far from FP32 as plain BF16 and its weights moved 0.9 to 1.2 times as far (69 trainings, on a
    CPU). Not found are rates 0.76 to 1.24 times as high, a momentum of 0.8 and a wrong label; found are half the rate,
    a forgotten momentum, and a layer's gradient that is small, lost or of another sign.
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
    change, always = max(tolerance.change, FURTHER * own.change), min(STATISTIC, tolerance.worst)
    # A weight of which rounding alone leaves nothing is judged with all others only.
    weights = [
        None if one is None or one >= MISSING else max(tolerance.worst, min(EACH_FURTHER * one, MISSING))
        for one in own.weights
    ]
    statistics = [None if one is None else max(always, EACH_FURTHER * one) for one in own.statistics]
    limits = Differences(losses, change, weights, statistics, size=math.nan)
    facts = _judge(found, limits, "the plain one's in FP32", exact, tuned)
    return facts | {"against": "plain FP32", "rounding_difference": own.change}


def _judge(found: Differences, limits: Differences, whose: str, plain: Trace, tuned: Trace) -> dict[str, Any]:
    losses = f"losses {_shown(tuned.losses)} against {_shown(plain.losses)}"
    said = f"in {STEPS} steps ({losses}) the checked engine's {{}} differs from {whose}"
    return {"steps": STEPS, **checked(said, found.furthest(limits), "it")}


def _norms(changes: Sequence[torch.Tensor]) -> list[float]:
    return [float(change.norm()) for change in changes]


def _apart(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> list[float]:
    return [float((t - p).norm()) for p, t in zip(plain, tuned, strict=True)]


def _each(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor], least: float) -> list[float | None]:
    """Each difference relative to its own plain change; None of those that changed by no more than `least`."""
    apart = zip(_apart(plain, tuned), _norms(plain), strict=True)
    return [None if norm <= least else difference / norm for difference, norm in apart]


def check_what_was_read(
    plain: Mapping[str, Sequence[torch.Tensor]], tuned: Mapping[str, Sequence[torch.Tensor]], step: str
) -> None:
    """GateError where a step (or iteration) read something else than the plain one's, or all of them read the same."""
    for what, expected in plain.items():
        seen = tuned[what]
        for number, pair in enumerate(zip(expected, seen, strict=True), start=1):
            if not torch.equal(*pair):
                raise GateError(f"{step} {number} of the checked engine read other {what} than the plain one's")
        if len(seen) > 1 and all(torch.equal(seen[0], later) for later in seen[1:]):
            raise GateError(f"every {step} read the same {what}: they are not fresh")


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)
