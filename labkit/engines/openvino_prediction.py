"""OpenVINO's predictor of a trial: calibrated with training images, compiled for the trial's batch and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from labkit.data import DataSet
from labkit.engines.calibration import calibration_batches, protocol
from labkit.engines.openvino_on_cpu import CompiledNetwork, compile_converted, convert, quantise, versions
from labkit.hardware.cpu_limits import usable_cores
from labkit.trial import Trial

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


class OpenVinoPredictor:
    """Logits of a batch from OpenVINO on a CPU. `model` is in evaluation mode with FP32 weights and is left as it is.

    OpenVINO fuses batch norm and whatever else by itself (`folded` is 0), and takes FP32 images in every precision.
    """

    dtype = torch.float32
    folded = 0
    compiles = True
    has_uncompiled_form = False

    def __init__(self, trial: Trial, model: nn.Module, data: DataSet, *, part: int) -> None:
        self.part, self.is_compiled = part, False
        self._trial, self._model, self._data = trial, model, data
        self._threads = trial.threads or usable_cores()
        self.weight_bytes = WEIGHT_BYTES[trial.precision]
        self.facts: dict[str, Any] = {"threads": self._threads, "engine_versions": versions()}
        self._network: Any = None
        self._compiled: CompiledNetwork | None = None

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Converting the network, and finding INT8's ranges."""
        yield "convert", self._convert
        if self._trial.precision == "int8":
            yield "calibrate", self._calibrate

    def _convert(self) -> None:
        px = self._trial.image_px
        self._network = convert(self._model, torch.zeros(2, 3, px, px))

    def _calibrate(self) -> None:
        batches = calibration_batches(self._trial, self._data)
        self._network = quantise(self._network, batches)
        self.facts["calibration"] = {
            "batches": len(batches),
            "images": sum(map(len, batches)),
            "protocol": protocol(self._data),
        }

    def compile(self) -> None:
        """Compile for parts of this size; `facts` then says which layers multiply in which type."""
        assert self._network is not None, "prepare first"
        self._compiled = compile_converted(
            self._network,
            precision=self._trial.precision,  # type: ignore[arg-type]
            batch=self.part,
            threads=self._threads,
        )
        self.facts["layers"] = {kind: dict(types) for kind, types in self._compiled.layers().items()}
        self.is_compiled = True

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) in FP32 of images (B, 3, H, W) in FP32."""
        assert self._compiled is not None, "compile first"
        if len(images) <= self.part:
            return self._compiled(images)
        return torch.cat([self._compiled(part) for part in images.split(self.part)])
