"""Base class of predictors: a batch's logits by PyTorch, OpenVINO or our kernels (`engines.predicting` chooses)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from workbook.trials.trial import Trial


class Predictor(ABC):
    """A predictor of a batch's logits, by any engine.

    `dtype` is the images' type, `weight_bytes` the size of one weight when it is read. `compiles` says whether
    `compile` must be called before the first prediction. `has_uncompiled_form` says whether the engine also predicts
    before that: the compiled or captured prediction is then compared with that form.
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
        """Return names and calls of the preparations before `compile`, in order."""
        return ()

    @abstractmethod
    def compile(self) -> None:
        """Compile the prediction of a batch of the trial; compilation may wait for the first prediction."""

    @abstractmethod
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) of images (B, 3, H, W) of type `dtype`."""
