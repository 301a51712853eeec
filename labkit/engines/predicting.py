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

    A batch is predicted in parts of at most `part` images, which is the whole batch unless memory forbids it. `dtype`
    is that of the images it takes, `weight_bytes` what one weight takes when it is read. `compiles` says whether
    `compile` is to be called before the first prediction, and again whenever `part` changes; `has_uncompiled_form`
    whether it predicts before that too, which the compiled or captured prediction is then held against.
    """

    dtype: torch.dtype
    weight_bytes: int
    folded = 0
    compiles = True
    has_uncompiled_form = False

    def __init__(self, trial: Trial, *, part: int) -> None:
        self.trial, self.part, self.is_compiled = trial, part, False
        self.facts: dict[str, Any] = {}

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Names and calls of what comes before `compile`, in order."""
        return ()

    @abstractmethod
    def compile(self) -> None:
        """Make what predicts `part` images at a time; at the latest in the first prediction."""

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) of images (B, 3, H, W) of `dtype`."""
        if len(images) <= self.part:
            return self._predict(images)
        return torch.cat([self._predict(part) for part in images.split(self.part)])

    @abstractmethod
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        """Of `part` images at most."""


def make_predictor(trial: Trial, model: nn.Module, data: DataSet) -> Predicts:
    """What predicts as the trial says. `model` is in evaluation mode with FP32 weights and may be changed in place.

    `data` has the training images that an engine calibrates with.
    """
    if trial.engine == "openvino":
        from labkit.engines.openvino_prediction import OpenVinoPredictor

        return OpenVinoPredictor(trial, model, data, part=trial.batch)
    if trial.engine == "triton+graph":
        from labkit.engines.fused.prediction import FusedPredictor

        return FusedPredictor(trial, model, data, part=trial.batch)
    return Predictor(trial, model, part=trial.batch)


class Predictor(Predicts):
    """PyTorch's engines. `model` is in evaluation mode with FP32 weights and is changed in place."""

    def __init__(self, trial: Trial, model: nn.Module, *, part: int) -> None:
        super().__init__(trial, part=part)
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
        self.is_compiled = True

    @torch.inference_mode()
    def _predict(self, images: torch.Tensor) -> torch.Tensor:
        return self._logits(images)
