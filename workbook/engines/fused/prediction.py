"""The fused kernels' predictor of a trial on a GPU: tiled for its batch, calibrated, checked against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from labkit.data import DataSet
from workbook.engines.batch_norm import fold_batch_norm
from workbook.engines.calibration import calibration_batches, facts_of
from workbook.engines.fused.network import FusedNetwork
from workbook.engines.predictor import Predictor
from workbook.engines.tolerances import check
from workbook.trials.trial import Trial

KINDS = {"int8": torch.int8, "fp16": torch.float16, "bf16": torch.bfloat16}
HELD_IMAGES = 16  # on which the kernels are compared with PyTorch's operators
# Of the norm of a layer's result, on the same input. Both add up the same sums in another order. A sum near the edge
# between two numbers of the result's type may be rounded either way. One wrong pixel in a hundred exceeds these limits.
HELD_WITHIN = {"int8": 0.01, "fp16": 0.002, "bf16": 0.01}


class FusedPredictor(Predictor):
    """A predictor of FP32 logits. `model` is in evaluation mode with FP32 weights and is changed in place.

    In INT8, the first layer makes bytes of FP16 images.
    """

    def __init__(self, trial: Trial, model: nn.Module, data: DataSet) -> None:
        super().__init__(trial)
        self._model, self._data = model, data
        self._kind = KINDS[trial.precision]
        self.dtype = torch.float16 if self._kind == torch.int8 else self._kind
        self.weight_bytes = self._kind.itemsize
        self.folded = fold_batch_norm(model)
        self._network: FusedNetwork | None = None
        self._is_held = False

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the reading of the network, which in INT8 includes the search for ranges."""
        yield "calibrate" if self._kind == torch.int8 else "convert", self._read

    def _read(self) -> None:
        batches = calibration_batches(self.trial, self._data) if self._kind == torch.int8 else []
        self._network = FusedNetwork(self._model, self._kind, batches, image_px=self.trial.image_px)
        if batches:
            self.facts["calibration"] = facts_of(batches, self._data)

    def compile(self) -> None:
        """Leave it to the first prediction, which compiles, tries the tiles and is checked against PyTorch."""
        self._is_held = False

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) in FP32 of images (B, 3, H, W) of type `dtype`; GateError if a kernel is wrong."""
        assert self._network is not None, "prepare first"
        logits = self._network(images)
        if not self._is_held:
            apart = self._network.differences(images[:HELD_IMAGES])
            worst = max(apart, key=apart.__getitem__)
            claim = f"the kernel of layer {worst} differs from PyTorch's operators on the same input"
            check(claim, apart[worst], HELD_WITHIN[self.trial.precision], "its result's norm")
            self.facts |= {**self._network.describe(), "kernel_difference": apart[worst]}
            self._is_held = True
        return logits
