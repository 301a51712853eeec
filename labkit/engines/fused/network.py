"""A network of fused layers on a GPU, in bytes or in half precision: a convolution and all that follows it, one kernel.

In bytes weights are symmetric per filter, activations symmetric per value (`ranges`), and every convolution and matrix
product multiplies bytes and writes bytes. A layer's sum is exact in 32-bit integers; scale, bias, the other branch of a
residual and ReLU are applied to it in FP32 before it is rounded. Only the logits stay in FP32. `reference` computes the
same with PyTorch's operators, on any device and slowly: what the kernels are held against.

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

from labkit.engines.fused.arithmetic import Arithmetic, in_bytes, in_half
from labkit.engines.fused.graph import IMAGES, Layer, read
from labkit.engines.fused.operations import (
    Concatenate,
    Convolution,
    FirstConvolution,
    MaxPool,
    Mean,
    Operation,
    Resample,
)
from labkit.engines.fused.ranges import calibrate

TYPE_NAMES = {torch.int8: "i8", torch.float16: "f16", torch.bfloat16: "bf16"}  # as OpenVINO names them


class FusedNetwork:
    """The fused twin of a network. Calling it gives logits (N, classes) in FP32 of floating-point images (N, 3, H, W).

    `model` is in evaluation mode with batch norm folded and FP32 weights, on the device that is to predict. `kind` is
    int8, float16 or bfloat16; int8 takes `calibration`, batches (n, 3, H, W) of FP32 images on that device. ValueError
    where they are missing, Unsupported for layers that there are none of here.
    """

    def __init__(
        self, model: nn.Module, kind: torch.dtype, calibration: Iterable[torch.Tensor] = (), *, image_px: int
    ) -> None:
        self.kind = kind
        graph = read(model, image_px)
        self.steps = calibrate(graph, calibration) if kind == torch.int8 else dict.fromkeys(range(graph.values), 1.0)
        self._result, self._last_uses = graph.result, graph.last_uses()
        made = [(layer, self._operation(layer)) for layer in graph.layers]
        # The FP32 weights are needed no more.
        self._layers = [(replace(layer, weight=None, bias=None), operation) for layer, operation in made]

    def _operation(self, layer: Layer) -> Operation:
        step_in = self.steps[layer.inputs[0]]
        if layer.kind == "convolution":
            arithmetic = self._arithmetic(layer)
            if layer.inputs[0] == IMAGES:
                return FirstConvolution(layer, arithmetic, step_in)
            return Convolution(layer, arithmetic)
        if layer.kind == "mean":
            return Mean(step_in / self.steps[layer.output])
        if layer.kind == "max_pool":
            return MaxPool(layer)
        return Resample(layer.edge) if layer.kind == "resample" else Concatenate()

    def _arithmetic(self, layer: Layer) -> Arithmetic:
        is_last = layer.output == self._result
        if self.kind != torch.int8:
            return in_half(layer, self.kind, is_last=is_last)
        steps, other = self.steps, layer.adds
        return in_bytes(
            layer,
            steps[layer.inputs[0]],
            None if is_last else steps[layer.output],
            None if other is None else steps[other],
        )

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """By the kernels, on a GPU. The first call with a batch size tries the tiles."""
        return self._run(images, reference=False)

    @torch.inference_mode()
    def reference(self, images: torch.Tensor) -> torch.Tensor:
        """The same by PyTorch's operators, on any device, slowly."""
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
        """How many layers multiply in this type, by kind, and the tiles of each for the batches seen so far."""
        multiplying = [(layer.name, one) for layer, one in self._layers if isinstance(one, Convolution)]
        products, name = sum(one.is_product for _, one in multiplying), TYPE_NAMES[self.kind]
        return {
            "layers": {"Convolution": {name: len(multiplying) - products}, "FullyConnected": {name: products}},
            "tiles": {layer: [asdict(tile) for tile in one.chosen.values()] for layer, one in multiplying},
        }
