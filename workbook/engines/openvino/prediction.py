"""OpenVINO's predictor of a trial: calibrated with training images, compiled for the trial's batch and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from labkit.data import DataSet
from workbook.engines.calibration import calibration_batches, facts_of
from workbook.engines.openvino.network import CompiledNetwork, compile_converted, convert, quantise, versions
from workbook.engines.predictor import Predictor
from workbook.hardware.limits import usable_cores
from workbook.trials.trial import Trial

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


class OpenVinoPredictor(Predictor):
    """A predictor by OpenVINO on a CPU. `model` is in evaluation mode with FP32 weights and is not changed.

    OpenVINO fuses batch norm and other layers by itself (`folded` is 0), and takes FP32 images in every precision.
    """

    dtype = torch.float32

    def __init__(self, trial: Trial, model: nn.Module, data: DataSet) -> None:
        super().__init__(trial)
        self._model, self._data = model, data
        self._threads = trial.threads or usable_cores()
        self.weight_bytes = WEIGHT_BYTES[trial.precision]
        self.facts |= {"threads": self._threads, "engine_versions": versions()}
        self._network: Any = None
        self._compiled: CompiledNetwork | None = None

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the conversion of the network, and for INT8 the search for ranges."""
        yield "convert", self._convert
        if self.trial.precision == "int8":
            yield "calibrate", self._calibrate

    def _convert(self) -> None:
        px = self.trial.image_px
        self._network = convert(self._model, torch.zeros(2, 3, px, px))

    def _calibrate(self) -> None:
        batches = calibration_batches(self.trial, self._data)
        self._network = quantise(self._network, batches)
        self.facts["calibration"] = facts_of(batches, self._data)

    def compile(self) -> None:
        """Compile for the trial's batch; `facts` then says which layers multiply in which type."""
        assert self._network is not None, "prepare first"
        about: dict[str, Any] = {"precision": self.trial.precision, "batch": self.trial.batch, "threads": self._threads}
        self._compiled = compile_converted(self._network, **about)
        self.facts["layers"] = {kind: dict(types) for kind, types in self._compiled.layers().items()}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) of images (B, 3, H, W) in FP32."""
        assert self._compiled is not None, "compile first"
        return self._compiled(images)
