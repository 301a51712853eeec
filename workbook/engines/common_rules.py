"""Rules of support that hold in every framework. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable

from labkit.models import MODELS
from workbook.trials.rules import Rule

# The lowest compute capability whose arithmetic units support a format.
# Source: NVIDIA, CUDA C++ Programming Guide, "Arithmetic".
NEEDS_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "int8": (7, 5), "fp8": (8, 9)}
# Families whose last batch norm layers see one pixel of a 32x32 image. Inception-v3 does not take such images.
ENDS_WITH_ONE_PIXEL = ("resnet", "googlenet", "inception_bn")

# fmt: off
TF32_ON_A_CPU = Rule("never", lambda t: t.device == "cpu" and t.precision == "tf32",
    "TF32 is a mode of NVIDIA's tensor cores (Ampere and later); a CPU has none")
AS_INSTALLED_ON_A_CPU = Rule("never", lambda t: t.device == "cpu" and t.precision == "default",
    "PyTorch as installed computes in strict FP32 on a CPU: the row of strict FP32 has its numbers")
FP16_ON_A_CPU = Rule("version", lambda t: t.device == "cpu" and t.precision == "fp16",
    "FP16 training needs loss scaling, which frameworks do on GPUs only: use BF16 on a CPU")
ONE_IMAGE = Rule("never", lambda t: (t.batch_of_device == 1 and t.image_px == 32
                                     and t.model in MODELS and MODELS[t.model].family in ENDS_WITH_ONE_PIXEL),
    "batch norm cannot train on a single value a channel, which is what a batch of 1 leaves of 32x32 images")


def of_gpu(backend: str, capability: Callable[[], tuple[int, int] | None]) -> tuple[Rule, ...]:
    """Return the rules of a back end's GPU. `capability` is its compute capability, None if it sees no GPU."""
    return (
        Rule("here", lambda t: t.device == "cuda" and capability() is None,
            f"there is no GPU here that this {backend} can use"),
        Rule("never", lambda t: t.device == "cuda" and _lacks(NEEDS_CAPABILITY.get(t.precision, (0, 0)), capability()),
            "{precision} needs compute capability {value}", asks_machine=True),
    )
# fmt: on


def _lacks(needs: tuple[int, int], has: tuple[int, int] | None) -> str | None:
    """Return `8.0, this device has 7.0` for a device that is too old; None for any other."""
    return None if has is None or tuple(has) >= needs else "{}.{}, this device has {}.{}".format(*needs, *has)
