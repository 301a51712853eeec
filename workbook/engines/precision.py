"""A precision in training: modes that it sets, and its tolerances against the baseline step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from workbook.trials.trial import Trial

# PyTorch's own settings, as it starts: before any trial changes them.
_AS_INSTALLED = (
    torch.backends.cuda.matmul.allow_tf32,
    torch.backends.cudnn.allow_tf32,
    torch.backends.cudnn.benchmark,
)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Tolerance(NamedTuple):
    """How far a tuned step's losses may be from the baseline's, and the changes of all weights and of each weight.

    Changes are compared by the norm of their difference over that of the baseline's change. After three steps this is
    0.56 for a forgotten momentum, 0.5 for half the learning rate, 1 for a missing gradient, 1.4 for an unrelated one.
    """

    loss: float
    change: float
    worst: float


TOLERANCES = {
    "fp32": Tolerance(1e-4, 0.05, 0.2),
    "default": Tolerance(5e-4, 0.15, 0.4),
    "tf32": Tolerance(5e-4, 0.15, 0.4),
    "fp16": Tolerance(1e-3, 0.2, 0.4),
    "bf16": Tolerance(5e-3, 0.35, 0.6),
}


def capability() -> tuple[int, int] | None:
    """Return the compute capability of the GPU; None if this PyTorch can use none."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def set_modes(trial: Trial) -> None:
    """Set PyTorch's modes: TF32 only if the precision says so. cuDNN tries out its algorithms, as shapes are fixed.

    The precision `default` restores the settings that PyTorch starts with.
    """
    tf32 = trial.precision == "tf32"
    products, convolutions, tries_out = _AS_INSTALLED if trial.precision == "default" else (tf32, tf32, True)
    torch.backends.cuda.matmul.allow_tf32 = products
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cudnn.benchmark = tries_out
    torch.backends.cudnn.deterministic = False


def autocast(trial: Trial) -> AbstractContextManager[Any]:
    """Return the context of the forward pass: autocast to half precision if the weights are kept in FP32."""
    if trial.precision in AUTOCAST and trial.optimizer != "sgd_master":
        context: AbstractContextManager[Any] = torch.autocast(trial.device, AUTOCAST[trial.precision])
        return context
    return nullcontext()
