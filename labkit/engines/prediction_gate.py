"""Are these the plain network's logits? What a prediction may be away from it, and from its own engine uncompiled."""

from __future__ import annotations

from typing import Any

import torch

from labkit.engines.tolerated import check, checked
from labkit.errors import GateError
from labkit.trial import Trial

# How far the logits may be from the plain FP32 network's: the norm of the difference over that of the difference
# between two batches' logits, so that a stale batch is 1 away. On a CPU, BF16 was 0.03 to 0.07 away, of GoogLeNet 0.21.
# INT8 at initial weights, calibrated: ResNets and AlexNet 0.06 to 0.17, VGG-16 0.18, GoogLeNet 0.40, whose untrained
# activations are many small ones beside few large; ranges that are off by a factor of 3 make three times as much of it.
TOLERANCES = {"fp32": 1e-3, "tf32": 0.1, "fp16": 0.1, "bf16": 0.35, "int8": 0.6}
ENGINE_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "fp16": 0.05, "bf16": 0.2}
WORST_IMAGE = 4.0  # times that, for the single image that differs most
UNIT = "the difference between two batches"


def compare(expected: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
    """How far logits (B, classes) of two batches are from those expected, beside the tolerance; GateError beyond it.

    The unit is the difference between the two batches: a prediction of the other batch is 1 away.
    """
    shape = (trial.batch, trial.classes)
    if any(tuple(logits.shape) != shape for logits in seen):
        raise GateError(f"{trial.model} gave logits of shapes {[tuple(one.shape) for one in seen]}, expected {shape}")
    unit = float((expected[0] - expected[1]).norm())
    if not unit > 0:
        raise GateError("the plain network predicts the same for two different batches: nothing can be compared")
    apart = _largest([(s - e).norm() for s, e in zip(seen, expected, strict=True)]) / unit
    differences = {"logits": ("logits", apart, TOLERANCES[trial.precision])}
    return {"batches": len(seen), **checked("the {} differ from the plain FP32 network's", differences, UNIT)}


def compare_engine(uncompiled: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
    """The same against the engine's own network before it was compiled or captured, in its own precision.

    Only fusing can change rounding then, so the tolerance is narrower, and no single image may be far away.
    """
    difference_of_batches = uncompiled[0] - uncompiled[1]
    unit, unit_of_image = float(difference_of_batches.norm()), float(difference_of_batches.norm(dim=1).mean())
    apart = [s - u for s, u in zip(seen, uncompiled, strict=True)]
    difference = _largest([logits.norm() for logits in apart]) / unit
    worst = _largest([logits.norm(dim=1).max() for logits in apart]) / unit_of_image
    said = "differ from what they were before it was compiled or captured"
    tolerance = ENGINE_TOLERANCES[trial.precision]
    check(f"the logits {said}", difference, tolerance, UNIT)
    check(f"the logits of a single image {said}", worst, WORST_IMAGE * tolerance, UNIT)
    return {"engine_difference": difference, "engine_worst_image": worst}


def _largest(values: list[torch.Tensor]) -> float:
    """Not a number where one of them is none: Python's `max` would hide it behind an earlier number."""
    return float(torch.stack(values).max())
