"""What "plain" and "tuned" mean: fields for `lab.trials(**recipe)`, in one place, with the reason for each.

`plain` is what the papers ran. `tuned` is what this hardware does best with the same network and the same images; it
differs from the plain loop in precision too, which study 07 takes apart.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal

from labkit.trial import Trial

Recipe = dict[str, Any]

# Eager, FP32, contiguous, PyTorch's default SGD: a trial's defaults, and what the papers' frameworks did.
PLAIN: Recipe = {}

# A GPU. The step is captured once and replayed, because at 32x32 launching its kernels takes longer than they run; BF16
# and channels last, because tensor cores take those; SGD in one kernel that keeps FP32 masters of the BF16 weights.
CAPTURED: Recipe = {
    "engine": "graph",
    "precision": "bf16",
    "memory_format": "channels_last",
    "optimizer": "sgd_master",
}
# The same, compiled before it is captured: fewer kernels, which pass over memory less often.
COMPILED: Recipe = {**CAPTURED, "engine": "compile+graph"}

# A CPU has nothing to capture; compiling fuses loops that pass over memory, and the fused SGD updates all weights at
# once. Provisional: which engine, precision and memory format suit a CPU is to be chosen by measurement.
COMPILED_ON_CPU: Recipe = {
    "engine": "compile",
    "precision": "fp32",
    "memory_format": "contiguous",
    "optimizer": "sgd_fused",
}

_TUNED = MappingProxyType(
    {
        "cuda": {"graph": CAPTURED, "compile+graph": COMPILED},
        "cpu": {"compile": COMPILED_ON_CPU},
    }
)


def tuned(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """The tuned recipes of a kind of device, by a short name; they copy, so a caller may change its own."""
    return {name: dict(recipe) for name, recipe in _TUNED[kind].items()}


def recipes(kind: Literal["cuda", "cpu"]) -> dict[str, Recipe]:
    """`plain` and the tuned recipes of a kind of device, by the names that a profile's sweeps use."""
    return {"plain": dict(PLAIN), **tuned(kind)}


def is_plain(trial: Trial) -> bool:
    """Whether a trial is the papers' loop: eager, FP32, contiguous, PyTorch's default SGD."""
    return all(getattr(trial, name) == getattr(_DEFAULT, name) for name in COMPILED)


def engine_name(trial: Trial) -> str:
    """A trial's engine for people: `plain` for the papers' loop, else `eager`, `graph`, `compile`, `compile+graph`."""
    return "plain" if is_plain(trial) else trial.engine


_DEFAULT = Trial()
