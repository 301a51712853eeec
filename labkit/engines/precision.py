"""What a precision means in training: the modes it sets, where it runs, how near to the plain step it must stay."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from labkit.engines.any_framework import why_not_on_cpu, why_too_old
from labkit.trial import Trial

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Tolerance(NamedTuple):
    """How far a tuned step may be from the plain one: its losses, all weights' change over a few steps, each weight's.

    Changes are compared by the norm of their difference over that of the plain change. A forgotten momentum makes it
    0.56 after three steps, half the learning rate 0.5, a missing gradient 1, an unrelated one 1.4.
    """

    loss: float
    change: float
    worst: float


TOLERANCES = {
    "fp32": Tolerance(1e-4, 0.05, 0.2),
    "tf32": Tolerance(5e-4, 0.15, 0.4),
    "fp16": Tolerance(1e-3, 0.2, 0.4),
    "bf16": Tolerance(5e-3, 0.35, 0.6),
}


def why_unsupported(trial: Trial) -> str | None:
    """Why this device does not train in the trial's precision; None where it does."""
    if trial.precision not in TOLERANCES:
        return f"the training workload does not train in {trial.precision}"
    return why_not_here(trial, trains=True)


def why_not_here(trial: Trial, *, trains: bool = False) -> str | None:
    """Why this device has no arithmetic of the trial's precision; None where it has."""
    if trial.device == "cpu":
        return why_not_on_cpu(trial.precision, trains=trains)
    if not torch.cuda.is_available():
        return "there is no GPU here that this PyTorch can use"
    return why_too_old(trial.precision, torch.cuda.get_device_capability())


def set_modes(precision: str) -> None:
    """FP32 means FP32: TF32 only where the trial says so. cuDNN picks its algorithms by trial for the fixed shapes."""
    tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def autocast(trial: Trial) -> AbstractContextManager[Any]:
    """The context of the forward pass: half precision where the weights themselves are kept in FP32."""
    if trial.precision in AUTOCAST and trial.optimizer != "sgd_master":
        context: AbstractContextManager[Any] = torch.autocast(trial.device, AUTOCAST[trial.precision])
        return context
    return nullcontext()
