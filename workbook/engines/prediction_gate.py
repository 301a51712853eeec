"""Correctness check of predictions: logits against the baseline network's, and against the same engine uncompiled."""

from __future__ import annotations

from typing import Any

import torch

from workbook.engines.tolerances import check, checked
from workbook.errors import GateError
from workbook.trials.trial import Trial

# Limits of the distance from the baseline FP32 network's logits: the norm of the difference over that of the difference
# between two batches' logits, so that a stale batch is 1 away. On a CPU, BF16 was 0.03 to 0.07 away, GoogLeNet's 0.21.
# Calibrated INT8 at initial weights was 0.06 to 0.17 away for ResNets and AlexNet, 0.18 for VGG-16, 0.40 for GoogLeNet,
# whose untrained activations are many small and few large. Ranges off by a factor of 3 make it three times as much.
TOLERANCES = {"fp32": 1e-3, "tf32": 0.1, "fp16": 0.1, "bf16": 0.35, "int8": 0.6}
ENGINE_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "fp16": 0.05, "bf16": 0.2}
WORST_IMAGE = 4.0  # times the engine's tolerance, for the single image that differs most
UNIT = "the difference between two batches"


def compare(expected: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
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
    differences = {"logits": ("logits", apart, TOLERANCES[trial.precision])}
    return {"batches": len(seen), **checked("the {} differ from the plain FP32 network's", differences, UNIT)}


def compare_engine(uncompiled: list[torch.Tensor], seen: list[torch.Tensor], trial: Trial) -> dict[str, Any]:
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
    check(f"the logits {claim}", difference, tolerance, UNIT)
    check(f"the logits of a single image {claim}", worst, WORST_IMAGE * tolerance, UNIT)
    return {"engine_difference": difference, "engine_worst_image": worst}


def _largest(values: list[torch.Tensor]) -> float:
    """Return the largest value; NaN if any is NaN, which Python's `max` would hide behind an earlier number."""
    return float(torch.stack(values).max())
