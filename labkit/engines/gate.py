"""Does a tuned step compute what the plain one computes? A few steps of both, from the same weights.

plain    FP32 weights, PyTorch's own SGD, eager; the trial's precision (autocast for half precision)
tuned    whatever the trial's engine and optimiser make of it

Compared are each step's loss and labels, and how far every weight moved. Both draw the same dropout, since both start
from one state of the random generator.

At its initial weights a ResNet on 32x32 images magnifies rounding beyond use: on an H200 the first gradient of plain
BF16 differs from that of plain FP32 by 1.2 of its norm, as two random directions do by 1.4. So the gate weakens the
residual branches (by `DAMPING`, in both) and takes small steps: rounding then changes the gradient by less than half of
the tolerances below, and a wrong step by more than they allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit.engines.precision import TOLERANCES, Tolerance
from labkit.errors import GateError

STEPS = 3
DAMPING = 0.05
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Trace:
    """What a few steps did: the losses, the labels seen in each, and every weight's change (FP32)."""

    losses: list[float]
    labels: list[torch.Tensor]
    changes: list[torch.Tensor]


def compare(plain: Trace, tuned: Trace, precision: str) -> dict[str, Any]:
    """The differences beside their tolerances; GateError when a step read other images or computed something else.

    The tolerances of the precision are relative: of the losses the largest difference, of the weights' changes the norm
    of the difference over the norm of the plain change, all weights together.
    """
    tolerance = TOLERANCES[precision]
    _check_labels(plain.labels, tuned.labels)
    if not all(map(math.isfinite, [*plain.losses, *tuned.losses])):
        raise GateError(f"losses are not finite: plain {_shown(plain.losses)}, tuned {_shown(tuned.losses)}")
    of_loss = max(abs(p - t) / abs(p) for p, t in zip(plain.losses, tuned.losses, strict=True))
    moved = [float(change.norm()) for change in plain.changes]
    still = [i for i, change in enumerate(tuned.changes) if moved[i] > 0 and not bool(change.any())]
    if still:
        raise GateError(f"{len(still)} of {len(moved)} weights did not move in {len(tuned.losses)} tuned steps")
    total = math.hypot(*moved)
    apart = [float((t - p).norm()) for p, t in zip(plain.changes, tuned.changes, strict=True)]
    of_change = math.hypot(*apart) / total if total else math.nan
    _check(of_loss, of_change, tolerance, plain, tuned)
    return {
        "steps": len(plain.losses),
        "loss_difference": of_loss,
        "loss_tolerance": tolerance.loss,
        "change_difference": of_change,
        "change_tolerance": tolerance.change,
    }


def _check(of_loss: float, of_change: float, tolerance: Tolerance, plain: Trace, tuned: Trace) -> None:
    if not of_loss <= tolerance.loss:
        raise GateError(
            f"the tuned step's losses {_shown(tuned.losses)} differ from the plain one's {_shown(plain.losses)} by "
            f"{of_loss:.2g}, more than {tolerance.loss:g}"
        )
    if not of_change <= tolerance.change:
        raise GateError(
            f"after {len(plain.losses)} steps the tuned weights' change differs from the plain one's by "
            f"{of_change:.2g} of its norm, more than {tolerance.change:g}"
        )


def _check_labels(plain: Sequence[torch.Tensor], tuned: Sequence[torch.Tensor]) -> None:
    for number, (expected, seen) in enumerate(zip(plain, tuned, strict=True), start=1):
        if not torch.equal(expected, seen):
            raise GateError(f"step {number} of the tuned engine read other images than the plain one's")
    if len(tuned) > 1 and all(torch.equal(tuned[0], seen) for seen in tuned[1:]):
        raise GateError("every step read the same batch: the data are not fresh")


def _shown(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.4f}" for loss in losses)
