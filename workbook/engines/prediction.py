"""Predictors of a trial, of which PyTorch's are here, and the hits of their predictions.

eager           the model as it is, in the trial's precision
compile         batch norm folded, then Inductor: a ResNet by its blocks on a GPU, whole with frozen weights on a CPU
graph           batch norm folded, then captured in a CUDA graph
compile+graph   batch norm folded, compiled, then captured
openvino        OpenVINO's own network, in bytes if the trial says INT8 (`openvino_on_cpu`)
triton+graph    labkit's own kernels, one a layer, in bytes or half precision, captured in a CUDA graph (`fused`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit.data import Split
from labkit.data.augment import TORCH_FORMATS
from workbook.engines.batch_norm import fold_batch_norm
from workbook.engines.regions import logits_function
from workbook.records.scored import Hits
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


DTYPES = {**dict.fromkeys(("fp32", "default", "tf32"), torch.float32), "fp16": torch.float16, "bf16": torch.bfloat16}


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


TOP = 5  # all classes if there are fewer


def score(
    predict: Callable[[torch.Tensor], torch.Tensor], split: Split, *, batch: int, on_share: Callable[[float], None]
) -> tuple[Hits, Hits]:
    """Return whether each image's class ranked first, and whether it ranked in the first five: two bool arrays (N,).

    `predict` takes uint8 images (batch, 3, H, W) on the host and returns logits (batch, classes). A short last batch is
    filled up with the split's first images, whose logits are left out. `on_share` gets the share done, 0 to 1.
    """
    images = len(split)
    top1, top5 = np.zeros(images, np.bool_), np.zeros(images, np.bool_)
    for first in range(0, images, batch):
        chosen = np.arange(first, first + batch)
        logits = predict(torch.from_numpy(split.images[chosen % images]))
        wanted = torch.from_numpy(split.labels[chosen % images].astype(np.int64)).to(logits.device)
        ranked = logits.float().topk(min(TOP, logits.shape[1]), dim=1).indices == wanted[:, None]
        of_split = slice(first, min(first + batch, images))
        count = of_split.stop - first
        top1[of_split] = ranked[:count, 0].cpu().numpy()
        top5[of_split] = ranked[:count].any(dim=1).cpu().numpy()
        on_share(of_split.stop / images)
    return top1, top5
