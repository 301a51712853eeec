"""Why a trial cannot be computed, where the reason holds in every framework. Needs none of them."""

from __future__ import annotations

from labkit.models import MODELS
from labkit.trial import Trial

# The first generation of NVIDIA's devices whose arithmetic units know a format.
# Source: NVIDIA, CUDA C++ Programming Guide, "Arithmetic".
NEEDS_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "int8": (7, 5)}
# Families whose last layers with batch norm see 32x32 images as a single pixel; Inception-v3 does not take those.
ENDS_WITH_ONE_PIXEL = ("resnet", "googlenet", "inception_bn")


def why_too_old(precision: str, has: tuple[int, int]) -> str | None:
    """Why a device of this compute capability has no arithmetic of the precision; None where it has."""
    needs = NEEDS_CAPABILITY.get(precision, (0, 0))
    if has >= needs:
        return None
    dotted = [".".join(map(str, capability)) for capability in (needs, has)]
    return f"{precision} needs compute capability {dotted[0]}, this device has {dotted[1]}"


def why_not_on_cpu(precision: str, *, trains: bool = True) -> str | None:
    """Why no CPU computes in the precision; None where some do."""
    if precision == "tf32":
        return "TF32 is a mode of NVIDIA's tensor cores (Ampere and later); a CPU has none"
    if precision == "fp16" and trains:
        return "FP16 training needs loss scaling, which frameworks do on GPUs only: use BF16 on a CPU"
    return None


def why_not_normalised(trial: Trial) -> str | None:
    """Why batch norm cannot train on a batch of one image; None where it can, and of all larger batches."""
    entry = MODELS.get(trial.model)
    if entry is None or trial.batch_of_device > 1 or trial.image_px != 32 or entry.family not in ENDS_WITH_ONE_PIXEL:
        return None
    if entry.family == "resnet" and trial.stem != "imagenet":
        return None
    return "batch norm cannot train on a single value a channel, which is what a batch of 1 leaves of 32x32 images"
