"""A model that predicts: its weights, precision and memory format as a trial has them, driven by the trial's engine.

Engines of PyTorch stand here, OpenVINO's in `openvino_prediction`, kernels of our own in `fused`:

eager           the model as it is, in the trial's precision
compile         batch norm folded, then Inductor: a ResNet by its blocks on a GPU, whole with frozen weights on a CPU
graph           batch norm folded, then captured in a CUDA graph
compile+graph   all of it
openvino        OpenVINO's own network, in bytes where the trial says INT8
triton+graph    kernels of our own, a layer each, in bytes or half precision, captured in a CUDA graph
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from labkit.data import DataSet
from labkit.data.augment import TORCH_FORMATS
from labkit.engines.folding import fold_batch_norm
from labkit.engines.regions import logits_function
from labkit.trial import Trial

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


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


def make_predictor(trial: Trial, model: nn.Module, data: DataSet) -> Predicts:
    """What predicts as the trial says. `model` is in evaluation mode with FP32 weights and may be changed in place.

    `data` has the training images that an engine calibrates with.
    """
    if trial.engine == "openvino":
        from labkit.engines.openvino_prediction import OpenVinoPredictor

        return OpenVinoPredictor(trial, model, data)
    if trial.engine == "triton+graph":
        from labkit.engines.fused.prediction import FusedPredictor

        return FusedPredictor(trial, model, data)
    return Predictor(trial, model)


class Predictor(Predicts):
    """PyTorch's engines. `model` is in evaluation mode with FP32 weights and is changed in place."""

    def __init__(self, trial: Trial, model: nn.Module) -> None:
        super().__init__(trial)
        self.folded = fold_batch_norm(model) if trial.engine != "eager" else 0
        self.dtype = DTYPES[trial.precision]
        self.weight_bytes = self.dtype.itemsize
        self.compiles, self.has_uncompiled_form = "compile" in trial.engine, trial.engine != "eager"
        self.model = model.to(dtype=self.dtype, memory_format=TORCH_FORMATS[trial.memory_format])
        self._logits = logits_function(self.model, None)

    def compile(self) -> None:
        """Let Inductor make the forward pass; it does so in the first prediction."""
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
        """Logits (B, classes) of images (B, 3, H, W) of `dtype`."""
        return self._logits(images)
