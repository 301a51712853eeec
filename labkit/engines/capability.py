"""The first generation of NVIDIA's devices whose arithmetic units know a format. Needs no framework.

Source: NVIDIA, CUDA C++ Programming Guide, "Arithmetic".
"""

from __future__ import annotations

NEEDS_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "int8": (7, 5)}


def why_too_old(precision: str, has: tuple[int, int]) -> str | None:
    """Why a device of this compute capability has no arithmetic of the precision; None where it has."""
    needs = NEEDS_CAPABILITY.get(precision, (0, 0))
    if has >= needs:
        return None
    return f"{precision} needs compute capability {_dotted(needs)}, this device has {_dotted(has)}"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
