"""What predicts: logits of a batch, by PyTorch, OpenVINO or kernels of our own (`engines.predicting` chooses)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from labkit.trial import Trial


class Predicts(ABC):
    """Logits of a batch, whatever predicts them.

    `dtype` is that of the images, `weight_bytes` the size of one weight when it is read. `compiles` says whether
    `compile` has to be called before the first prediction; `has_uncompiled_form` whether the engine predicts before
    that too: the compiled or captured prediction is then compared with that form.
    """

    dtype: torch.dtype
    weight_bytes: int
    folded = 0
    compiles = True
    has_uncompiled_form = False

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.facts: dict[str, Any] = {}

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Names and calls of what comes before `compile`, in order."""
        return ()

    @abstractmethod
    def compile(self) -> None:
        """Make what predicts a batch of the trial; at the latest in the first prediction."""

    @abstractmethod
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) of images (B, 3, H, W) of `dtype`."""
