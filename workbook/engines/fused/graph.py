"""A network as the few layers that the fused kernels have, read from its modules by torch.fx.

A layer is a convolution with what follows it (bias, the other branch of a residual, ReLU), a pooling, an average or a
concatenation. A matrix product is a convolution whose window is the whole image. Batch norm must be folded before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional

from workbook.errors import Unsupported

IMAGES = 0  # the number of the network's input
_SKIPPED = (nn.Identity, nn.Dropout)
_ADDITIONS = (operator.add, operator.iadd, torch.add)


@dataclass(frozen=True)
class Layer:
    """One layer; `inputs` and `output` number the values that flow between layers. Sizes are in pixels."""

    kind: str  # convolution, max_pool, mean, resample or concatenate
    inputs: tuple[int, ...]
    output: int
    name: str
    weight: torch.Tensor | None = None  # (K, C, R, S)
    bias: torch.Tensor | None = None
    relu: bool = False
    adds: int | None = None  # the value that is added before ReLU
    window: int = 0
    stride: int = 1
    pad: int = 0
    rounds_up: bool = False  # a pooling that covers the last, incomplete window too
    edge: int = 0  # of the result of `resample`
    is_product: bool = False  # a matrix product in the network


@dataclass
class Graph:
    """Layers, each after the layers that make its inputs. `result` is the value with the logits."""

    layers: list[Layer] = field(default_factory=list)
    values: int = 1
    result: int = IMAGES

    def run(self, images: torch.Tensor, seen: Callable[[int, torch.Tensor], None] | None = None) -> torch.Tensor:
        """Return floating-point logits (N, classes) of images (N, 3, H, W). `seen` is called once with every value."""
        values: dict[int, torch.Tensor] = {IMAGES: images}
        show = seen or (lambda _number, _value: None)
        show(IMAGES, images)
        last = self.last_uses()
        for index, layer in enumerate(self.layers):
            values[layer.output] = result = _float(layer, values)
            show(layer.output, result)
            for number in last[index]:
                del values[number]
        return values[self.result].flatten(1)

    def last_uses(self) -> list[list[int]]:
        """Return for each layer the values that no later layer reads."""
        unread: list[list[int]] = [[] for _ in self.layers]
        done = {self.result}
        for index in reversed(range(len(self.layers))):
            for number in (*self.layers[index].inputs, self.layers[index].adds):
                if number is not None and number not in done:
                    done.add(number)
                    unread[index].append(number)
        return unread


def _float(layer: Layer, values: dict[int, torch.Tensor]) -> torch.Tensor:
    first = values[layer.inputs[0]]
    if layer.kind == "convolution":
        assert layer.weight is not None
        result = functional.conv2d(first, layer.weight, layer.bias, stride=layer.stride, padding=layer.pad)
        if layer.adds is not None:
            result = result + values[layer.adds]
        return result.relu() if layer.relu else result
    if layer.kind == "max_pool":
        return functional.max_pool2d(first, layer.window, layer.stride, layer.pad, ceil_mode=layer.rounds_up)
    if layer.kind == "mean":
        return first.mean((2, 3), keepdim=True)
    if layer.kind == "resample":
        return functional.adaptive_avg_pool2d(first, layer.edge)
    return torch.cat([values[number] for number in layer.inputs], dim=1)


def read(model: nn.Module, image_px: int) -> Graph:
    """Return the layers of a network in evaluation mode without batch norm, for images (N, 3, image_px, image_px).

    The layers share its weights. Raise ValueError in training mode, Unsupported for any other operator than these
    layers, a grouped convolution or a window that is no square.
    """
    if model.training:
        raise ValueError("the model is in training mode: call eval() first")
    traced = fx.symbolic_trace(model)
    weight = next(model.parameters())
    ShapeProp(traced).propagate(torch.zeros(1, 3, image_px, image_px, dtype=weight.dtype, device=weight.device))
    return _Reader(traced).read()


class _Reader:
    """Reader of the nodes in order. An addition or a ReLU becomes part of the convolution whose value it takes."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._graph = Graph()
        self._number: dict[fx.Node, int] = {}  # of the value that a node makes
        self._added: set[int] = set()  # values of convolutions that already add a value
        self._closed: set[int] = set()  # values with several users, or after a ReLU

    def read(self) -> Graph:
        for node in self._traced.graph.nodes:
            self._number[node] = self._value_of(node)
            if len(node.users) != 1:
                self._closed.add(self._number[node])
        return self._graph

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._traced.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _value_of(self, node: fx.Node) -> int:
        module: Any = self._module(node)
        if node.op == "placeholder":
            return IMAGES
        if node.op == "output":
            self._graph.result = self._number[node.args[0]]
            return self._graph.result
        if isinstance(module, (*_SKIPPED, nn.Flatten)) or node.target is torch.flatten:
            return self._number[node.args[0]]
        if isinstance(module, nn.Conv2d | nn.Linear):
            return self._convolution(node, module)
        if isinstance(module, nn.ReLU) or node.target in (functional.relu, torch.relu):
            number = self._number[node.args[0]]
            self._extend(node, number, relu=True)
            self._closed.add(number)
            return number
        if node.target in _ADDITIONS:
            return self._with_addition(node)
        if isinstance(module, nn.MaxPool2d):
            window, stride, pad = (self._one(node, one) for one in (module.kernel_size, module.stride, module.padding))
            if self._one(node, module.dilation) != 1:
                raise Unsupported(f"{node.target} is a dilated pooling", "version")
            facts = {"window": window, "stride": stride, "pad": pad, "rounds_up": module.ceil_mode}
            return self._add(node, "max_pool", [node.args[0]], **facts)
        if isinstance(module, nn.AdaptiveAvgPool2d):
            edge = self._one(node, module.output_size)
            if edge == node.args[0].meta["tensor_meta"].shape[-1]:
                return self._number[node.args[0]]
            if edge == 1:
                return self._add(node, "mean", [node.args[0]])
            return self._add(node, "resample", [node.args[0]], edge=edge)
        if node.target is torch.cat and node.kwargs.get("dim", node.args[1:]) in (1, (1,)):
            return self._add(node, "concatenate", list(node.args[0]))
        raise _unknown(node)

    def _convolution(self, node: fx.Node, module: Any) -> int:
        source = node.args[0]
        weight, bias, stride, pad = module.weight.detach(), module.bias, 1, 0
        if isinstance(module, nn.Linear):
            before: Any = source
            while before.target is torch.flatten or isinstance(self._module(before), (*_SKIPPED, nn.Flatten)):
                before = before.args[0]
            _, channels, *sizes = before.meta["tensor_meta"].shape  # (N, C, H, W) if it was flattened
            weight = weight.reshape(weight.shape[0], channels, *(sizes or [1, 1]))
        else:
            stride, pad = self._one(node, module.stride), self._one(node, module.padding)
            if module.groups != 1 or self._one(node, module.dilation) != 1 or module.padding_mode != "zeros":
                raise Unsupported(f"{node.target} is a grouped, dilated or otherwise padded convolution", "version")
        facts = {"stride": stride, "pad": pad, "is_product": isinstance(module, nn.Linear)}
        bias = None if bias is None else bias.detach()
        return self._add(node, "convolution", [source], weight=weight, bias=bias, **facts)

    def _with_addition(self, node: fx.Node) -> int:
        """Add in the later of both operands, a convolution, which finds the other operand's value ready."""
        operands = {self._number[operand] for operand in node.args if isinstance(operand, fx.Node)}
        number = max(operands)
        if len(operands) != 2 or number in self._added:
            raise _unknown(node)
        self._added.add(number)
        self._extend(node, number, adds=min(operands))
        return number

    def _extend(self, node: fx.Node, number: int, **facts: Any) -> None:
        layer = self._graph.layers[number - 1] if number else None
        if layer is None or layer.kind != "convolution" or number in self._closed:
            raise _unknown(node)
        self._graph.layers[number - 1] = replace(layer, **facts)

    def _add(self, node: fx.Node, kind: str, inputs: list[Any], **facts: Any) -> int:
        number = self._graph.values
        self._graph.layers.append(Layer(kind, tuple(self._number[one] for one in inputs), number, node.name, **facts))
        self._graph.values += 1
        return number

    def _one(self, node: fx.Node, size: Any) -> int:
        """Return the single number of a size that is equal in both directions."""
        numbers = set(size) if isinstance(size, tuple) else {size}
        if len(numbers) != 1 or not isinstance(number := numbers.pop(), int):
            raise Unsupported(f"{node.target} differs between its two directions", "version")
        return number


def _unknown(node: fx.Node) -> Unsupported:
    return Unsupported(f"the fused kernels have no {node.target}", "version")
