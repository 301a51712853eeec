"""INT8's predictor of a trial on a GPU: calibrated with training images, cut for its batch, held to integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from labkit.data import DataSet
from labkit.engines.calibration import CALIBRATION, calibration_batches
from labkit.engines.folding import fold_batch_norm
from labkit.engines.int8.network import Int8Network
from labkit.errors import GateError
from labkit.trial import Trial

HELD_IMAGES = 16  # on which the kernels are held against integers
# Of the logits' norm. A sum on the edge between two steps may be rounded either way, which later layers carry on:
# ResNet-50's logits at 224 px were 0.001 away, those of smaller networks 0.
HELD_WITHIN = 0.02


class Int8Predictor:
    """Logits of a batch from bytes on a GPU. `model` is in evaluation mode with FP32 weights and is changed in place.

    It takes BF16 images, which the first layer rounds to bytes, and gives FP32 logits.
    """

    dtype = torch.bfloat16
    weight_bytes = 1
    compiles = True
    has_uncompiled_form = False

    def __init__(self, trial: Trial, model: nn.Module, data: DataSet, *, part: int) -> None:
        self.part, self.is_compiled = part, False
        self._trial, self._model, self._data = trial, model, data
        self.folded = fold_batch_norm(model)
        self.facts: dict[str, Any] = {}
        self._network: Int8Network | None = None
        self._is_held = False

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Finding the ranges."""
        yield "calibrate", self._calibrate

    def _calibrate(self) -> None:
        batches = calibration_batches(self._trial, self._data)
        self._network = Int8Network(self._model, batches, image_px=self._trial.image_px)
        self.facts["calibration"] = {
            "batches": len(batches),
            "images": sum(map(len, batches)),
            "protocol": CALIBRATION,
        }

    def compile(self) -> None:
        """Try the tiles anew: the first prediction does so, and is held against integers."""
        self.is_compiled, self._is_held = True, False

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) in FP32 of images (B, 3, H, W) in BF16; GateError where a kernel is wrong."""
        assert self._network is not None, "prepare first"
        if len(images) <= self.part:
            logits = self._network(images)
        else:
            logits = torch.cat([self._network(part) for part in images.split(self.part)])
        if not self._is_held:
            self._hold(images[:HELD_IMAGES], logits[:HELD_IMAGES])
        return logits

    def _hold(self, images: torch.Tensor, logits: torch.Tensor) -> None:
        assert self._network is not None
        expected = self._network.reference(images)
        apart = float((logits - expected).norm() / expected.norm())
        if not apart <= HELD_WITHIN:
            raise GateError(f"the kernels' logits differ by {apart:.2g} of their norm from those of exact integers")
        self.facts |= self._network.describe()
        self.facts["integer_difference"] = apart
        self._is_held = True
