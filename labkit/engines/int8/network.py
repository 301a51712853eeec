"""A network in INT8 on a GPU: every convolution and matrix product multiplies bytes and writes bytes.

Weights are symmetric per filter, activations symmetric per value (`int8_ranges`). A layer's sum is exact in 32-bit
integers; scale, bias, the other branch of a residual and ReLU are applied to it in FP32 before it is rounded to a byte.
Only the logits stay in FP32. On the CPU the same layers compute the same with PyTorch's operators, slowly: that is the
integer reference which the kernels are held against.

Triton rather than cuDNN or TensorRT: the whole of what follows a convolution goes into its kernel, nothing has to be
installed beside PyTorch, and the kernels can be read. The first convolution, whose three channels are too few for
tensor cores, sees squares of pixels as channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from labkit.engines.int8.graph import IMAGES, Layer, read
from labkit.engines.int8.operations import (
    Concatenate,
    Convolution,
    FirstConvolution,
    MaxPool,
    Mean,
    Operation,
    Resample,
)
from labkit.engines.int8.ranges import calibrate


class Int8Network:
    """The INT8 twin of a network. Calling it gives logits (N, classes) in FP32 of floating-point images (N, 3, H, W).

    `model` is in evaluation mode with batch norm folded and FP32 weights, on the device that is to predict;
    `calibration` are batches (n, 3, H, W) of FP32 images there. Unsupported for layers that INT8 has not here.
    """

    def __init__(self, model: nn.Module, calibration: Iterable[torch.Tensor], *, image_px: int) -> None:
        graph = read(model, image_px)
        self.steps = calibrate(graph, calibration)
        self._result, self._last_uses = graph.result, graph.last_uses()
        made = [(layer, self._operation(layer)) for layer in graph.layers]
        # The FP32 weights are needed no more.
        self._layers = [(replace(layer, weight=None, bias=None), operation) for layer, operation in made]

    def _operation(self, layer: Layer) -> Operation:
        steps, step_in = self.steps, self.steps[layer.inputs[0]]
        if layer.kind == "convolution":
            kind = FirstConvolution if layer.inputs[0] == IMAGES else Convolution
            step_out = None if layer.output == self._result else steps[layer.output]
            return kind(layer, step_in, step_out, None if layer.adds is None else steps[layer.adds])
        if layer.kind == "mean":
            return Mean(step_in / steps[layer.output])
        if layer.kind == "max_pool":
            return MaxPool(layer)
        return Resample(layer.edge) if layer.kind == "resample" else Concatenate()

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """By the kernels, on a GPU. The first call with a batch size tries the tiles."""
        return self._run(images, reference=False)

    @torch.inference_mode()
    def reference(self, images: torch.Tensor) -> torch.Tensor:
        """The same integers by PyTorch's operators, on any device, slowly."""
        return self._run(images, reference=True)

    def _run(self, images: torch.Tensor, *, reference: bool) -> torch.Tensor:
        values = {IMAGES: images}
        for (layer, operation), done in zip(self._layers, self._last_uses, strict=True):
            numbers = (*layer.inputs, *(() if layer.adds is None else (layer.adds,)))
            inputs = [values[number] for number in numbers]
            values[layer.output] = operation(*inputs, reference=reference)
            for number in done:
                del values[number]
        return values[self._result].flatten(1)

    def describe(self) -> dict[str, Any]:
        """How many layers multiply bytes, by kind, and by which tiles each was cut for the batches seen so far."""
        multiplying = [(layer.name, one) for layer, one in self._layers if isinstance(one, Convolution)]
        products = sum(one.is_product for _, one in multiplying)
        return {
            "layers": {"Convolution": {"i8": len(multiplying) - products}, "FullyConnected": {"i8": products}},
            "tiles": {name: [asdict(tile) for tile in one.chosen.values()] for name, one in multiplying},
        }
