"""Predictors of a trial: a model in the trial's precision and memory format, run by the trial's engine.

PyTorch's engines are here, OpenVINO's is in `openvino`, labkit's own kernels are in `fused`:

eager           the model as it is, in the trial's precision
compile         batch norm folded, then Inductor: a ResNet by its blocks on a GPU, whole with frozen weights on a CPU
graph           batch norm folded, then captured in a CUDA graph
compile+graph   batch norm folded, compiled, then captured
openvino        OpenVINO's own network, in bytes if the trial says INT8
triton+graph    labkit's own kernels, one a layer, in bytes or half precision, captured in a CUDA graph
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from labkit.data import DataSet
from labkit.data.augment import TORCH_FORMATS
from workbook.engines.batch_norm import fold_batch_norm
from workbook.engines.fused.prediction import FusedPredictor
from workbook.engines.openvino.prediction import OpenVinoPredictor
from workbook.engines.predictor import Predictor
from workbook.engines.regions import logits_function
from workbook.trials.trial import Trial

DTYPES = {**dict.fromkeys(("fp32", "default", "tf32"), torch.float32), "fp16": torch.float16, "bf16": torch.bfloat16}


def make_predictor(trial: Trial, model: nn.Module, data: DataSet) -> Predictor:
    """Return the trial's predictor. `model` is in evaluation mode with FP32 weights and may be changed in place.

    `data` has the training images that some engines calibrate with.
    """
    if trial.engine == "openvino":
        return OpenVinoPredictor(trial, model, data)
    if trial.engine == "triton+graph":
        return FusedPredictor(trial, model, data)
    return TorchPredictor(trial, model)


class TorchPredictor(Predictor):
    """A predictor by PyTorch's engines. `model` is in evaluation mode with FP32 weights and is changed in place."""

    def __init__(self, trial: Trial, model: nn.Module) -> None:
        super().__init__(trial)
        self.folded = fold_batch_norm(model) if trial.engine != "eager" else 0
        self.dtype = DTYPES[trial.precision]
        self.weight_bytes = self.dtype.itemsize
        self.compiles, self.has_uncompiled_form = "compile" in trial.engine, trial.engine != "eager"
        self.model = model.to(dtype=self.dtype, memory_format=TORCH_FORMATS[trial.memory_format])
        self._logits = logits_function(self.model, None)

    def compile(self) -> None:
        """Let Inductor compile the forward pass; it does so in the first prediction."""
        on_gpu = self.trial.device == "cuda"
        options: dict[str, Any] = {} if on_gpu else {"freezing": True}  # oneDNN packs weights that cannot change
        if on_gpu and self.trial.memory_format == "contiguous":
            options["layout_optimization"] = False
        compile_ = partial(torch.compile, dynamic=False, fullgraph=True, options=options)
        if on_gpu:
            self._logits = logits_function(self.model, compile_)
        else:
            self._logits = compile_(logits_function(self.model, None))

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, classes) of images (B, 3, H, W) of type `dtype`."""
        return self._logits(images)
