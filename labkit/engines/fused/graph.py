"""A network as the few layers that INT8 inference knows, read from its modules by torch.fx.

A layer is a convolution with what follows it (bias, the other branch of a residual, ReLU), a pooling, an average or a
concatenation. A matrix product is a convolution whose window is the whole image. Batch norm must be folded before.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional

from labkit.errors import Unsupported

IMAGES = 0  # the value that the network is given
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
    """Layers in an order in which each finds its inputs ready. `result` is the value with the logits."""

    layers: list[Layer] = field(default_factory=list)
    values: int = 1
    result: int = IMAGES

    def run(self, images: torch.Tensor, seen: Callable[[int, torch.Tensor], None] | None = None) -> torch.Tensor:
        """Logits (N, classes) in floating point, of images (N, 3, H, W); `seen` is shown every value once."""
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
        """For each layer the values that nothing after it reads."""
        found: list[list[int]] = [[] for _ in self.layers]
        done = {self.result}
        for index in reversed(range(len(self.layers))):
            for number in (*self.layers[index].inputs, self.layers[index].adds):
                if number is not None and number not in done:
                    done.add(number)
                    found[index].append(number)
        return found


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
    """The layers of a network in evaluation mode without batch norm, for images (N, 3, image_px, image_px).

    Its weights are shared. ValueError in training mode, Unsupported for
    what none of them is: another operator, a grouped convolution, a window that is no square.
    """
    if model.training:
        raise ValueError("the model is in training mode: call eval() first")
    traced = fx.symbolic_trace(model)
    weight = next(model.parameters())
    ShapeProp(traced).propagate(torch.zeros(1, 3, image_px, image_px, dtype=weight.dtype, device=weight.device))
    return _Reader(traced).read()


class _Reader:
    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._nodes = list(traced.graph.nodes)
        self._order = {node: place for place, node in enumerate(self._nodes)}
        self._number: dict[fx.Node, int] = {}
        self._graph = Graph()
        self._ends: dict[fx.Node, tuple[fx.Node, fx.Node | None, bool]] = {}  # of a convolution, by its last node
        self._inside: set[fx.Node] = set()  # nodes whose work a convolution does

    def read(self) -> Graph:
        for node in self._nodes:
            if self._multiplies(node):
                self._find_end(node)
        for node in self._nodes:
            if node in self._ends:
                self._emit_convolution(node, *self._ends[node])
            elif node not in self._inside:
                self._emit(node)
        return self._graph

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self._traced.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _multiplies(self, node: fx.Node) -> bool:
        return isinstance(self._module(node), (nn.Conv2d, nn.Linear))

    def _is_relu(self, node: fx.Node) -> bool:
        return isinstance(self._module(node), nn.ReLU) or node.target in (functional.relu, torch.relu)

    def _after(self, node: fx.Node) -> Iterator[fx.Node]:
        """The nodes that take nothing but this one's result, nearest first, those that change nothing among them."""
        while len(node.users) == 1:
            node = next(iter(node.users))
            yield node
            if not isinstance(self._module(node), _SKIPPED):
                return

    def _find_end(self, node: fx.Node) -> None:
        """How far the work on a convolution's accumulators reaches: through one addition and one ReLU at most."""
        end, other, covered = node, None, [node]
        chain = list(self._after(node))
        if chain and chain[-1].target in _ADDITIONS:
            addition = chain[-1]
            operands = [arg for arg in addition.args if isinstance(arg, fx.Node)]
            mine = next(arg for arg in operands if arg is node or arg in chain)
            other = next((arg for arg in operands if arg is not mine), None)
            if other is None or self._comes_later(other, node):
                other = None  # the other branch ends in a convolution that does the addition
            else:
                covered += chain
                end = addition
                chain = list(self._after(addition))
        if chain and self._is_relu(chain[-1]):
            covered += chain
            end = chain[-1]
        self._inside.update(covered)
        self._ends[end] = (node, other, self._is_relu(end))

    def _comes_later(self, other: fx.Node, node: fx.Node) -> bool:
        while isinstance(self._module(other), _SKIPPED):
            other = other.args[0]
        return self._multiplies(other) and len(other.users) == 1 and self._order[other] > self._order[node]

    def _emit_convolution(self, end: fx.Node, node: fx.Node, other: fx.Node | None, relu: bool) -> None:
        module: Any = self._module(node)
        source = node.args[0]
        weight, stride, pad = module.weight, 1, 0
        if isinstance(module, nn.Linear):
            channels, *sizes = self._flattened_from(source)
            weight = weight.reshape(weight.shape[0], channels, *(sizes or [1, 1]))
        else:
            stride, pad = self._one(node, module.stride), self._one(node, module.padding)
            if module.groups != 1 or self._one(node, module.dilation) != 1 or module.padding_mode != "zeros":
                raise Unsupported(f"{node.target} is a grouped, dilated or otherwise padded convolution")
        self._add(
            end,
            "convolution",
            [source],
            weight=weight.detach(),
            bias=module.bias.detach() if module.bias is not None else None,
            relu=relu,
            adds=None if other is None else self._number[other],
            stride=stride,
            pad=pad,
            is_product=isinstance(module, nn.Linear),
        )

    def _flattened_from(self, node: Any) -> tuple[int, ...]:
        """The shape (C, H, W) of what reaches a matrix product flat."""
        while node.target is torch.flatten or isinstance(self._module(node), (*_SKIPPED, nn.Flatten)):
            node = node.args[0]
        return tuple(node.meta["tensor_meta"].shape[1:])

    def _emit(self, node: fx.Node) -> None:
        module: Any = self._module(node)
        if node.op == "placeholder":
            self._number[node] = IMAGES
        elif node.op == "output":
            self._graph.result = self._number[node.args[0]]
        elif isinstance(module, (*_SKIPPED, nn.Flatten)) or node.target is torch.flatten:
            self._number[node] = self._number[node.args[0]]
        elif isinstance(module, nn.MaxPool2d):
            window, stride, pad = (self._one(node, one) for one in (module.kernel_size, module.stride, module.padding))
            facts = {"window": window, "stride": stride, "pad": pad, "rounds_up": module.ceil_mode}
            if self._one(node, module.dilation) != 1:
                raise Unsupported(f"{node.target} is a dilated pooling")
            self._add(node, "max_pool", [node.args[0]], **facts)
        elif isinstance(module, nn.AdaptiveAvgPool2d):
            edge = self._one(node, module.output_size)
            before = node.args[0].meta["tensor_meta"].shape[-1]
            if edge == before:
                self._number[node] = self._number[node.args[0]]
            elif edge == 1:
                self._add(node, "mean", [node.args[0]])
            else:
                self._add(node, "resample", [node.args[0]], edge=edge)
        elif node.target is torch.cat and (node.kwargs.get("dim", node.args[1:]) in (1, (1,))):
            self._add(node, "concatenate", list(node.args[0]))
        else:
            raise Unsupported(f"INT8 layers have no {node.target}")

    def _add(self, node: fx.Node, kind: str, inputs: list[Any], **facts: Any) -> None:
        self._number[node] = self._graph.values
        self._graph.layers.append(
            Layer(kind, tuple(self._number[one] for one in inputs), self._graph.values, node.name, **facts)
        )
        self._graph.values += 1

    def _one(self, node: fx.Node, size: Any) -> int:
        """The single number of a size that is the same in both directions."""
        numbers = set(size) if isinstance(size, tuple) else {size}
        if len(numbers) != 1 or not isinstance(number := numbers.pop(), int):
            raise Unsupported(f"{node.target} differs between its two directions")
        return number
