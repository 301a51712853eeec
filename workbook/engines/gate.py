"""Correctness checks: does a tuned step, or a prediction, compute what the baseline computes?

A few steps of both are compared.

baseline    eager, FP32 weights, PyTorch's own SGD; in the trial's own precision (autocast) and memory format
tuned       the trial's own engine and optimiser; DataParallel is compared with the batch's parts on one device

Both start from the same weights. The gate compares what each step read, its loss, how far every weight moved, and every
running mean and variance. Both draw the same dropout, since both start from one state of the random generator.

At its initial weights a ResNet on 32x32 images magnifies rounding. On an H200, the first gradients of baseline BF16 and
baseline FP32 differ by 1.2 of their norm, two random directions by 1.4. So the gate weakens in both what magnifies
rounding (`comparison`), and takes small steps. Rounding to BF16 then changed no weight's gradient by more than 0.35 of
its norm (ResNet-18, 50 and 152, on a CPU). A gradient that is missing, of another batch or of the wrong sign is 1 and
more away. Weight decay stays below any tolerance: the update has a test of its own.

A few similar images (the digits, 32 a device) still magnify rounding: baseline BF16 is then up to 0.5 of the change
from baseline FP32. So a step in a narrow precision beyond the tolerances is compared with FP32, beside the baseline
step of its own precision (`compare_beside_exact`). It may be about as far from FP32 as that step.

Logits of predictions are compared with the baseline network's, and with the same engine's uncompiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from workbook.engines.comparison import Difference, check, checked, weaken
from workbook.engines.precision import TOLERANCES, Tolerance
from workbook.engines.training import Training
from workbook.errors import GateError
from workbook.trials.trial import Trial

STEPS = 3
LEARNING_RATE = 1e-3
NEGLIGIBLE = 1e-5  # of the whole change: a weight that moves less is not judged alone
# Limits of distances from FP32, relative to the distance of the baseline steps in the trial's precision.
TOO_ROUGH = 0.6  # baseline steps that are further from FP32 are no measure
FURTHER, EACH_FURTHER = 1.6, 2.0  # times as far as the baseline: all weights, each weight or statistic
MISSING = 0.95  # the highest limit of a single weight: without its gradient it is 1 away
STATISTIC = 0.25  # the lowest limit of a statistic
OF_ANOTHER_SIZE = 0.25  # how much further, or less far, all weights may move
FIRST_LOSS = 1.5  # times the usual tolerance, for the loss before any update
OF_LOSS = 0.05  # of the weights' difference, for later losses: two roundings may give the same loss by chance

Step = Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Trace:
    """Results of a few steps: losses, what each step read, and changes of every weight and running statistic (FP32)."""

    losses: list[float]
    seen: list[torch.Tensor]
    changes: list[torch.Tensor]
    statistics: list[torch.Tensor]


def trace(training: Training, one_step: Step, *, seed: int) -> Trace:
    """Run a few steps of a training at its beginning and return their trace. `one_step` returns loss, images, labels.

    Nothing waits for the device between the steps. So the gate finds a step that overwrites what the step before reads.
    """
    torch.manual_seed(seed)
    weaken(training.model, training.masters())
    training.set_learning_rate(LEARNING_RATE)
    before = _on_host(training)
    # With several devices, each would draw its own random numbers for dropout, so nothing is dropped there.
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
    """Return copies of weights and statistics on the host, since the device's peak memory is reported."""
    both = (training.weights(), training.statistics())
    return [[value.detach().to("cpu", copy=True) for value in values] for values in both]


@dataclass(frozen=True)
class Differences:
    """Distances of a trace from a reference trace, relative to the reference; also limits of such distances.

    `change` is the norm of the difference over that of the reference's change, of all weights together. `weights` and
    `statistics` have the same of each alone, None where it hardly moves. `size` is the ratio of both changes' norms.
    """

    losses: list[float]
    change: float
    weights: list[float | None]
    statistics: list[float | None]
    size: float

    def furthest(self, limits: Differences) -> dict[str, Difference]:
        """Return the differences of losses, of all weights and of single values that use most of their limits."""
        of_weights = _furthest("change of a single weight", self.weights, limits.weights)
        of_statistics = _furthest("change of a running statistic", self.statistics, limits.statistics)
        return {
            "loss": _furthest("loss", self.losses, limits.losses),
            "change": ("change of all weights together", self.change, limits.change),
            "worst": max(of_weights, of_statistics, key=_share),
        }

    def within(self, tolerance: Tolerance) -> bool:
        """Return whether no difference exceeds the tolerance; NaN exceeds it."""
        return all(difference <= most for _, difference, most in self.furthest(_limits_of(self, tolerance)).values())


def _limits_of(gaps: Differences, tolerance: Tolerance) -> Differences:
    """Return the tolerance as limits: one for every loss, one for all weights, one for every weight and statistic."""
    losses = [tolerance.loss] * len(gaps.losses)
    weights, statistics = ([tolerance.worst] * len(values) for values in (gaps.weights, gaps.statistics))
    return Differences(losses, tolerance.change, [*weights], [*statistics], size=math.nan)


def _furthest(what: str, gaps: Sequence[float | None], limits: Sequence[float | None]) -> Difference:
    pairs = zip(gaps, limits, strict=True)
    judged = [(what, difference, most) for difference, most in pairs if difference is not None and most is not None]
    return max(judged, key=_share, default=(what, 0.0, MISSING))


def _share(difference: Difference) -> float:
    """Return the difference as a share of its limit; infinity for NaN, so that NaN comes before all others."""
    _, size, most = difference
    return math.inf if math.isnan(size) else size / most


def differences(plain: Trace, tuned: Trace) -> Differences:
    """Return how far the tuned steps are from the baseline steps.

    Raise GateError where rounding is no reason: a step read other images, a loss is not finite, a weight stood still.
    """
    check_what_was_read({"images": plain.seen}, {"images": tuned.seen}, "step")
    if not all(map(math.isfinite, [*plain.losses, *tuned.losses])):
        raise GateError(f"losses are not finite: baseline {_shown(plain.losses)}, tuned {_shown(tuned.losses)}")
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


def compare(plain: Trace, tuned: Trace, precision: str, gaps: Differences | None = None) -> dict[str, Any]:
    """Return the differences with their tolerances. Raise GateError if a step read other images or exceeds a tolerance.

    `gaps` are the differences of the two traces if they are known already: they take a while for large networks.
    """
    gaps = gaps or differences(plain, tuned)
    return _judge(gaps, _limits_of(gaps, TOLERANCES[precision]), "the baseline's", plain, tuned)


def compare_beside_exact(exact: Trace, plain: Trace, tuned: Trace, precision: str) -> dict[str, Any]:
    """Compare with baseline FP32: a value may differ about as much as in the baseline step of the trial's precision.

    For ResNet-18 on digits at batch 16 to 64, BF16 with other last digits (images of other rounding, or compiled) was
    0.6 to 1.6 times as far from FP32 as baseline BF16. Its weights moved 0.9 to 1.2 times as far (69 trainings, on a
    CPU). The comparison misses rates 0.76 to 1.24 times as high, a momentum of 0.8 and a wrong label. It finds half the
    rate, a forgotten momentum, and a layer's gradient that is small, lost or of another sign.
    """
    if not all(map(math.isfinite, exact.losses)):
        raise GateError(f"the losses of plain FP32 are not finite: {_shown(exact.losses)}")
    own, gaps, tolerance = _differences(exact, plain), _differences(exact, tuned), TOLERANCES[precision]
    if not own.change <= TOO_ROUGH:
        raise GateError(
            f"rounding to {precision.upper()} alone moves the baseline steps by {own.change:.2g} of their change, so "
            f"the tuned steps cannot be judged: take more images a device, or FP32"
        )
    if not abs(gaps.size / own.size - 1) <= OF_ANOTHER_SIZE:
        raise GateError(
            f"in {STEPS} steps the checked mode's weights move {gaps.size / own.size:.2g} times as far as the "
            f"baseline's, more than {OF_ANOTHER_SIZE:.0%} off"
        )
    first, *later = own.losses  # before the first loss no weight has moved
    losses = [max(FIRST_LOSS * tolerance.loss, first)]
    losses += [max(tolerance.loss, FURTHER * step, OF_LOSS * own.change) for step in later]
    change, always = max(tolerance.change, FURTHER * own.change), min(STATISTIC, tolerance.worst)
    # A weight whose change rounding alone destroys is judged only together with all weights.
    weights = [
        None if distance is None or distance >= MISSING else max(tolerance.worst, min(EACH_FURTHER * distance, MISSING))
        for distance in own.weights
    ]
    statistics = [None if distance is None else max(always, EACH_FURTHER * distance) for distance in own.statistics]
    limits = Differences(losses, change, weights, statistics, size=math.nan)
    facts = _judge(gaps, limits, "the baseline's in FP32", exact, tuned)
    return facts | {"against": "plain FP32", "rounding_difference": own.change}


def _judge(gaps: Differences, limits: Differences, whose: str, plain: Trace, tuned: Trace) -> dict[str, Any]:
    losses = f"losses {_shown(tuned.losses)} against {_shown(plain.losses)}"
    sentence = f"in {STEPS} steps ({losses}) the checked mode's {{}} differs from {whose}"
    return {"steps": STEPS, **checked(sentence, gaps.furthest(limits), "it")}


def _norms(changes: Sequence[torch.Tensor]) -> list[float]:
    return [float(change.norm()) for change in changes]


def _apart(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> list[float]:
    return [float((t - p).norm()) for p, t in zip(plain, tuned, strict=True)]


def _each(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor], least: float) -> list[float | None]:
    """Return each difference relative to its own baseline change; None for changes of no more than `least`."""
    apart = zip(_apart(plain, tuned), _norms(plain), strict=True)
    return [None if norm <= least else difference / norm for difference, norm in apart]


def check_what_was_read(
    plain: Mapping[str, Sequence[torch.Tensor]], tuned: Mapping[str, Sequence[torch.Tensor]], step: str
) -> None:
    """Raise GateError if a step (or iteration) read other values than the baseline's, or all steps read the same."""
    for what, expected in plain.items():
        seen = tuned[what]
        for number, pair in enumerate(zip(expected, seen, strict=True), start=1):
            if not torch.equal(*pair):
                raise GateError(f"{step} {number} of the checked mode read other {what} than the baseline's")
        if len(seen) > 1 and all(torch.equal(seen[0], later) for later in seen[1:]):
            raise GateError(f"every {step} read the same {what}: they are not fresh")


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)


# Limits of the distance from the baseline FP32 network's logits: the norm of the difference over that of the difference
# between two batches' logits, so that a stale batch is 1 away. On a CPU, BF16 was 0.03 to 0.07 away, GoogLeNet's 0.21.
# Calibrated INT8 at initial weights was 0.06 to 0.17 away for ResNets and AlexNet, 0.18 for VGG-16, 0.40 for GoogLeNet,
# whose untrained activations are many small and few large. Ranges off by a factor of 3 make it three times as much.
LOGIT_TOLERANCES = {"fp32": 1e-3, "default": 0.1, "tf32": 0.1, "fp16": 0.1, "bf16": 0.35, "int8": 0.6}
ENGINE_TOLERANCES = {"fp32": 1e-3, "default": 0.05, "tf32": 0.05, "fp16": 0.05, "bf16": 0.2}
WORST_IMAGE = 4.0  # times the engine's tolerance, for the single image that differs most
BATCH_UNIT = "the difference between two batches"


def compare_logits(expected: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
    """Return the distance of two batches' logits (B, classes) from those expected, with its tolerance.

    The unit is the difference between the batches: the wrong batch is 1 away. Raise GateError beyond the tolerance.
    """
    shape = (trial.batch, trial.classes)
    if any(tuple(logits.shape) != shape for logits in seen):
        raise GateError(f"{trial.model} gave logits of shapes {[tuple(one.shape) for one in seen]}, expected {shape}")
    unit = float((expected[0] - expected[1]).norm())
    if not unit > 0:
        raise GateError("the plain network predicts the same for two different batches: nothing can be compared")
    apart = _largest([(s - e).norm() for s, e in zip(seen, expected, strict=True)]) / unit
    differences = {"logits": ("logits", apart, LOGIT_TOLERANCES[trial.precision])}
    return {"batches": len(seen), **checked("the {} differ from the plain FP32 network's", differences, BATCH_UNIT)}


def compare_with_uncompiled(uncompiled: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
    """Return the distance from the same engine's logits before it was compiled or captured, in its own precision.

    Only fusing changes rounding between the two, so the tolerance is narrower, and no single image may be far away.
    """
    difference_of_batches = uncompiled[0] - uncompiled[1]
    unit, unit_of_image = float(difference_of_batches.norm()), float(difference_of_batches.norm(dim=1).mean())
    apart = [s - u for s, u in zip(seen, uncompiled, strict=True)]
    difference = _largest([logits.norm() for logits in apart]) / unit
    worst = _largest([logits.norm(dim=1).max() for logits in apart]) / unit_of_image
    claim = "differ from those before it was compiled or captured"
    tolerance = ENGINE_TOLERANCES[trial.precision]
    check(f"the logits {claim}", difference, tolerance, BATCH_UNIT)
    check(f"the logits of a single image {claim}", worst, WORST_IMAGE * tolerance, BATCH_UNIT)
    return {"engine_difference": difference, "engine_worst_image": worst}


def _largest(values: list[torch.Tensor]) -> float:
    """Return the largest value; NaN if any is NaN, which Python's `max` would hide behind an earlier number."""
    return float(torch.stack(values).max())
