"""A model that predicts: its weights, precision and memory format as a trial has them, driven by the trial's engine.

eager           the model as it is, in the trial's precision
compile         batch norm folded, then Inductor: a ResNet by its blocks on a GPU, whole with frozen weights on a CPU
graph           batch norm folded, then captured in a CUDA graph
compile+graph   all of it
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from labkit.data.augment import TORCH_FORMATS
from labkit.engines.folding import fold_batch_norm
from labkit.engines.regions import logits_function
from labkit.trial import Trial

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Predictor:
    """Logits of a batch. `model` is in evaluation mode with FP32 weights and is changed in place.

    A batch is predicted in parts of at most `part` images, which is the whole batch unless memory forbids it.
    """

    def __init__(self, trial: Trial, model: nn.Module, *, part: int) -> None:
        self.trial, self.part = trial, part
        self.folded = fold_batch_norm(model) if trial.engine != "eager" else 0
        self.dtype = DTYPES[trial.precision]
        self.model = model.to(dtype=self.dtype, memory_format=TORCH_FORMATS[trial.memory_format])
        self._logits = logits_function(self.model, None)
        self.is_compiled = False

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
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, classes) in the trial's precision, of images (B, 3, H, W) in that precision."""
        if len(images) <= self.part:
            return self._logits(images)
        return torch.cat([self._logits(part) for part in images.split(self.part)])
