"""Reasons why a trial cannot be computed that hold in every framework. Imports no framework."""

from __future__ import annotations

from labkit.models import MODELS
from workbook.trials.trial import Trial

# The lowest compute capability whose arithmetic units support a format.
# Source: NVIDIA, CUDA C++ Programming Guide, "Arithmetic".
NEEDS_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "int8": (7, 5)}
# Families whose last batch norm layers see one pixel of a 32x32 image. Inception-v3 does not take such images.
ENDS_WITH_ONE_PIXEL = ("resnet", "googlenet", "inception_bn")


def why_too_old(precision: str, has: tuple[int, int]) -> str | None:
    """Return why a device of compute capability `has` cannot compute in `precision`; None if it can."""
    needs = NEEDS_CAPABILITY.get(precision, (0, 0))
    if has >= needs:
        return None
    dotted = [".".join(map(str, capability)) for capability in (needs, has)]
    return f"{precision} needs compute capability {dotted[0]}, this device has {dotted[1]}"


def why_not_on_cpu(precision: str, *, trains: bool = True) -> str | None:
    """Return why no CPU computes in `precision`; None if some do."""
    if precision == "tf32":
        return "TF32 is a mode of NVIDIA's tensor cores (Ampere and later); a CPU has none"
    if precision == "fp16" and trains:
        return "FP16 training needs loss scaling, which frameworks do on GPUs only: use BF16 on a CPU"
    return None


def why_not_normalised(trial: Trial) -> str | None:
    """Return why batch norm cannot train on a batch of one image; None if it can, as with every larger batch."""
    entry = MODELS.get(trial.model)
    if entry is None or trial.batch_of_device > 1 or trial.image_px != 32 or entry.family not in ENDS_WITH_ONE_PIXEL:
        return None
    return "batch norm cannot train on a single value a channel, which is what a batch of 1 leaves of 32x32 images"
