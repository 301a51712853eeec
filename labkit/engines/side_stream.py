"""Gradients of weights on a stream of their own, beside the backward pass that does not wait for them.

Going back through a network, only the gradient of each layer's input is needed to go on; the gradient of its weights is
not needed before the update. On small images neither fills the device, so both run at once: in the captured graph the
side stream becomes a second branch. `join()` closes it before the update.

What the side stream reads must not be overwritten meanwhile: `record_stream` keeps the allocator from it, and Inductor
must neither reuse buffers nor write in place (`INDUCTOR_OPTIONS`).

Where several ranks train, a receiver says where each gradient goes (a bucket of `buckets`) and hears as soon as it is
queued: long before autograd, which gets the gradients of a compiled network when its whole backward pass is queued.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

INDUCTOR_OPTIONS = {"allow_buffer_reuse": False, "inplace_buffers": False}


class Receiver(Protocol):
    """Who wants gradients of weights as soon as they are made."""

    def place_of(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Where this weight's gradient is to be written, laid out like the weight; None where it has no place."""
        ...

    def made(self, weight: torch.Tensor, stream: Any) -> None:
        """What is queued on that stream by now has written it there."""
        ...


def _side() -> torch.cuda.Stream:
    return _side_of(torch.cuda.current_device())


@cache
def _side_of(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def join() -> None:
    """Let the current stream wait for all gradients of weights; nobody is told of them any more."""
    global _receiver
    _receiver = None
    torch.cuda.current_stream().wait_stream(_side())


def use_side_stream(model: nn.Module) -> None:
    """Let every convolution and matrix product of the model make its weights' gradients on the side stream.

    For networks in which no such layer is the last before a residual addition (a normalisation stands between in all
    of the catalogue's): there the gradient that arrives is shared with the skip path, and eager autograd may add to it
    in place while the side stream reads it. Matrix products take batches of vectors.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros":
            module.__class__ = _SideConv2d
        elif type(module) is nn.Linear and module.bias is not None:
            module.__class__ = _SideLinear


class _SideConv2d(nn.Conv2d):
    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shape = (list(self.stride), list(self.padding), list(self.dilation), self.groups)
        result: torch.Tensor = _Conv.apply(input, weight, bias, *shape)
        return result


class _SideLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Linear.apply(input, self.weight, self.bias)
        return result


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.shape = (stride, padding, dilation, groups)
        ctx.has_bias = bias is not None
        return functional.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.shape
        of_weight = conv_weight(gradient, x, weight, stride, padding, dilation, groups)
        of_input = None
        if ctx.needs_input_grad[0]:
            of_input = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
            )[0]
        of_bias = gradient.sum((0, 2, 3)) if ctx.has_bias else None
        return of_input, of_weight, of_bias, None, None, None, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight, linear_weight(gradient, x, weight), gradient.sum(0)


@torch.library.custom_op("labkit::conv_weight", mutates_args=())
def conv_weight(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> torch.Tensor:
    """The gradient of a convolution's weight, laid out like the weight, queued on the side stream."""
    side = _fork(gradient, x)
    with torch.cuda.stream(side):
        made = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [False, True, False]
        )[1]
        place = _place_of(weight)
        if place is not None:
            made = place.copy_(made)
        elif made.stride() != weight.stride():
            made = torch.empty_like(weight).copy_(made)
    return _hand_over(made, weight if place is not None else None, side)


@conv_weight.register_fake
def _(gradient: Any, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(weight)


@torch.library.custom_op("labkit::linear_weight", mutates_args=())
def linear_weight(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient of a matrix product's weight (out, in), queued on the side stream. The weight only says which."""
    side = _fork(gradient, x)
    with torch.cuda.stream(side):
        place = _place_of(weight)
        made = gradient.t() @ x if place is None else torch.mm(gradient.t(), x, out=place)
    return _hand_over(made, weight if place is not None else None, side)


@linear_weight.register_fake
def _(gradient: Any, x: Any, weight: Any) -> torch.Tensor:  # noqa: ARG001
    return gradient.new_empty(gradient.shape[1], x.shape[1])


def _fork(*read: torch.Tensor) -> torch.cuda.Stream:
    """The side stream, once all that is queued so far is done."""
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    for tensor in read:
        tensor.record_stream(side)
    return side


def _place_of(weight: torch.Tensor) -> torch.Tensor | None:
    return None if _receiver is None else _receiver.place_of(weight)


def _hand_over(made: torch.Tensor, placed: torch.Tensor | None, side: Any) -> torch.Tensor:
    """A tensor of the side stream that the current one will use after `join`; `placed` is the receiver's weight."""
    if placed is None:
        if _receiver is not None:  # it copies the gradient on the current stream
            torch.cuda.current_stream().wait_stream(side)
        made.record_stream(torch.cuda.current_stream())
    else:  # a place of the receiver's, which nobody gives back to the allocator meanwhile
        assert _receiver is not None
        _receiver.made(placed, side)
    _made.append(made.data_ptr())
    return made


_made: list[int] = []
_receiver: Receiver | None = None


def begin(receiver: Receiver | None) -> None:
    """Before a step: note anew which gradients are made, and tell this receiver."""
    global _receiver
    _made.clear()
    _receiver = receiver


def check_not_copied(gradients: list[torch.Tensor]) -> None:
    """RuntimeError when autograd copied a gradient: it would have read it before the side stream had written it."""
    missing = set(_made) - {gradient.data_ptr() for gradient in gradients}
    if missing:
        raise RuntimeError(f"autograd copied {len(missing)} of {len(_made)} gradients of the side stream")
