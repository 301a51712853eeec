"""A network of fused layers on a GPU, in bytes or half precision: one kernel a convolution and all that follows it.

In bytes, weights are symmetric per filter, activations symmetric per value (`arithmetic`). Every convolution and matrix
product but the first multiplies bytes and writes bytes. A layer's sum is exact in 32-bit integers. Scale, bias, the
other branch of a residual and ReLU are applied to it in FP32 before it is rounded. The first convolution multiplies in
FP16: the 256 levels of an image do not fit into symmetric bytes, and rounding them cost ResNet-50 and GoogLeNet 0.1
points of top-1. Its three channels are too few for tensor cores, so it sees squares of pixels as channels. Values that
a residual adds, or that the last mean is taken of, are kept in FP16 beside the bytes: rounded to bytes in every block,
the errors of 50 blocks add up. The logits are in FP32.

Triton was chosen rather than cuDNN or TensorRT. Everything after a convolution goes into its kernel, nothing has to be
installed beside PyTorch, and the kernels can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from labkit.data import DataSet
from workbook.engines.batch_norm import fold_batch_norm
from workbook.engines.comparison import check
from workbook.engines.fused.arithmetic import Arithmetic, calibrate, in_bytes, in_half
from workbook.engines.fused.graph import IMAGES, Graph, Layer, read
from workbook.engines.fused.operations import (
    Concatenate,
    Convolution,
    FirstConvolution,
    MaxPool,
    Mean,
    Operation,
    Resample,
    Result,
)
from workbook.engines.inference_images import calibration_batches, facts_of
from workbook.engines.prediction import Predictor
from workbook.trials.trial import Trial

TYPE_NAMES = {torch.int8: "i8", torch.float16: "f16", torch.bfloat16: "bf16"}  # as OpenVINO names them


class FusedNetwork:
    """The fused twin of a network. A call returns FP32 logits (N, classes) of floating-point images (N, 3, H, W).

    `model` is in evaluation mode with batch norm folded and FP32 weights, on the device that is to predict. `kind` is
    int8, float16 or bfloat16; int8 takes `calibration`, batches (n, 3, H, W) of FP32 images on that device. Raise
    ValueError if these are missing, Unsupported for layers that labkit does not have.
    """

    def __init__(
        self, model: nn.Module, kind: torch.dtype, calibration: Iterable[torch.Tensor] = (), *, image_px: int
    ) -> None:
        self.kind = kind
        graph = read(model, image_px)
        self.steps = calibrate(graph, calibration) if kind == torch.int8 else dict.fromkeys(range(graph.values), 1.0)
        self._result, self._last_uses = graph.result, graph.last_uses()
        self._in_bytes, self._wide = _uses(graph) if kind == torch.int8 else (set(), set())
        made = [(layer, self._operation(layer)) for layer in graph.layers]
        # The FP32 weights are no longer needed.
        self._layers = [(replace(layer, weight=None, bias=None), operation) for layer, operation in made]

    def _operation(self, layer: Layer) -> Operation:
        step_in = self.steps[layer.inputs[0]]
        if layer.kind == "convolution":
            kind = FirstConvolution if layer.inputs[0] == IMAGES else Convolution
            return kind(layer, self._arithmetic(layer))
        if layer.kind == "mean":
            wide = layer.inputs[0] in self._wide
            return Mean((1.0 if wide else step_in) / self.steps[layer.output], self.kind)
        if layer.kind == "max_pool":
            return MaxPool(layer)
        return Resample(layer.edge) if layer.kind == "resample" else Concatenate()

    def _arithmetic(self, layer: Layer) -> Arithmetic:
        is_last = layer.output == self._result
        if self.kind != torch.int8:
            return in_half(layer, self.kind, is_last=is_last)
        step_other = None if layer.adds is None or layer.adds in self._wide else self.steps[layer.adds]
        wide = layer.output in self._wide
        in_floats = is_last or (wide and layer.output not in self._in_bytes)
        step_out = None if in_floats else self.steps[layer.output]
        if layer.inputs[0] == IMAGES:
            widens = wide and not in_floats
            return in_half(layer, torch.float16, is_last=is_last, step=step_out, step_other=step_other, widens=widens)
        step_in = self.steps[layer.inputs[0]]
        if in_floats:
            return in_bytes(layer, step_in, None, step_other, out=torch.float32 if is_last else torch.float16)
        return in_bytes(layer, step_in, step_out, step_other, widens=wide)

    @torch.inference_mode()
    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits by the kernels, on a GPU. The first call with a batch size tries the tiles."""
        return self._run(images, lambda _layer, operation, inputs: operation(*inputs))

    @torch.inference_mode()
    def reference(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits by PyTorch's operators, on any device, slowly."""
        return self._run(images, lambda _layer, operation, inputs: operation(*inputs, reference=True))

    @torch.inference_mode()
    def differences(self, images: torch.Tensor) -> dict[str, float]:
        """Return each layer's distance from PyTorch's operators on the same input, over the norm of the result.

        The distance is infinite if bytes are more than one step apart or a difference is not finite. Logits are not
        compared: a sum on the edge between two steps may be rounded either way, and a deep network magnifies that.
        """
        distances: dict[str, float] = {}

        def both(layer: Layer, operation: Operation, inputs: Sequence[torch.Tensor]) -> Result:
            result, expected = operation(*inputs), operation(*inputs, reference=True)
            distances[layer.name] = max(map(_apart, _parts(result), _parts(expected)))
            return result

        self._run(images, both)
        return distances

    def _run(
        self, images: torch.Tensor, run: Callable[[Layer, Operation, Sequence[torch.Tensor]], Result]
    ) -> torch.Tensor:
        values = {IMAGES: images}
        wide: dict[int, torch.Tensor] = {}
        for (layer, operation), done in zip(self._layers, self._last_uses, strict=True):
            as_wide = {layer.adds} | (set(layer.inputs) if layer.kind == "mean" else set())
            numbers = (*layer.inputs, *(() if layer.adds is None else (layer.adds,)))
            inputs = [(wide if number in as_wide and number in wide else values)[number] for number in numbers]
            result = run(layer, operation, inputs)
            if isinstance(result, tuple):
                values[layer.output], wide[layer.output] = result
            else:
                values[layer.output] = result
            for number in done:
                values.pop(number, None)
                wide.pop(number, None)
        return values[self._result].flatten(1)

    def describe(self) -> dict[str, Any]:
        """Return by kind how many layers multiply in which type, and each layer's tiles for the batch sizes so far."""
        multiplying = [(layer.name, conv) for layer, conv in self._layers if isinstance(conv, Convolution)]
        layers: dict[str, dict[str, int]] = {"Convolution": {}, "FullyConnected": {}}
        for _, conv in multiplying:
            of_kind = layers["FullyConnected" if conv.is_product else "Convolution"]
            name = TYPE_NAMES[conv.weight.dtype]
            of_kind[name] = of_kind.get(name, 0) + 1
        return {
            "layers": layers,
            "tiles": {layer: [asdict(tile) for tile in conv.chosen.values()] for layer, conv in multiplying},
        }


def _parts(result: Result) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _apart(seen: torch.Tensor, expected: torch.Tensor) -> float:
    apart = seen.float() - expected.float()
    if not apart.isfinite().all() or (seen.dtype == torch.int8 and float(apart.abs().max()) > 1):
        return float("inf")
    return float(apart.norm() / expected.float().norm().clamp(min=1e-6))


def _uses(graph: Graph) -> tuple[set[int], set[int]]:
    """Return the values that are multiplied or moved, which needs bytes, and convolutions' values added or averaged.

    A pooling's result is bytes however it is used.
    """
    moved = {number for layer in graph.layers if layer.kind != "mean" for number in layer.inputs}
    added = {layer.adds for layer in graph.layers if layer.adds is not None}
    averaged = {layer.inputs[0] for layer in graph.layers if layer.kind == "mean"}
    convolved = {layer.output for layer in graph.layers if layer.kind == "convolution"}
    return moved, (added | averaged) & convolved


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
