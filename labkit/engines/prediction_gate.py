"""Are these the plain network's logits? What a prediction may be away from it, and from its own engine uncompiled."""

from __future__ import annotations

from typing import Any

import torch

from labkit.errors import GateError
from labkit.trial import Trial

# How far the logits may be from the plain FP32 network's: the norm of the difference over that of the difference
# between two batches' logits, so that a stale batch is 1 away. On a CPU, BF16 was 0.03 to 0.07 away, of GoogLeNet 0.21.
# INT8 at initial weights, calibrated: ResNets and AlexNet 0.06 to 0.17, VGG-16 0.18, GoogLeNet 0.40, whose untrained
# activations are many small ones beside few large; ranges that are off by a factor of 3 make three times as much of it.
TOLERANCES = {"fp32": 1e-3, "tf32": 0.1, "fp16": 0.1, "bf16": 0.35, "int8": 0.6}
ENGINE_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "fp16": 0.05, "bf16": 0.2}
WORST_IMAGE = 4.0  # times that, for the single image that differs most


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
    difference = max(float((s - e).norm()) / unit for s, e in zip(seen, expected, strict=True))
    tolerance = TOLERANCES[trial.precision]
    if not difference <= tolerance:
        raise GateError(
            f"the logits differ from the plain FP32 network's by {difference:.2g} of the difference between two "
            f"batches, more than {tolerance:g}"
        )
    return {"batches": len(seen), "logits_difference": difference, "logits_tolerance": tolerance}


def compare_engine(uncompiled: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
    """The same against the engine's own network before it was compiled or captured, in its own precision.

    Only fusing can change rounding then, so the tolerance is narrower, and no single image may be far away.
    """
    difference_of_batches = uncompiled[0] - uncompiled[1]
    unit, unit_of_image = float(difference_of_batches.norm()), float(difference_of_batches.norm(dim=1).mean())
    apart = [s - u for s, u in zip(seen, uncompiled, strict=True)]
    difference = max(float(one.norm()) for one in apart) / unit
    worst = max(float(one.norm(dim=1).max()) for one in apart) / unit_of_image
    for what, found, tolerance in (
        ("logits", difference, ENGINE_TOLERANCES[trial.precision]),
        ("logits of a single image", worst, WORST_IMAGE * ENGINE_TOLERANCES[trial.precision]),
    ):
        if not found <= tolerance:
            raise GateError(
                f"compiled or captured, the {what} differ from what they were before by {found:.2g} of the difference "
                f"between two batches, more than {tolerance:g}"
            )
    return {"engine_difference": difference, "engine_worst_image": worst}
