"""Compute gradients of weights on a stream of their own, beside the backward pass, which does not wait for them.

To go on, the backward pass needs only the gradient of each layer's input. The gradient of the layer's weights is not
needed before the update. On small images neither fills the device, so both run at once: in the captured graph the side
stream becomes a second branch. `join()` closes it before the update.

Memory that the side stream reads must not be overwritten meanwhile. `record_stream` keeps the allocator from doing so,
and Inductor must neither reuse buffers nor write in place (`INDUCTOR_OPTIONS`).

With several ranks, `buckets` assigns each gradient a place. This module reports a gradient to its bucket as soon as the
kernels that make it are queued. Autograd gets the gradients of a compiled network much later, after its whole backward
pass is queued.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from workbook.engines.exchange.buckets import Buckets

INDUCTOR_OPTIONS = {"allow_buffer_reuse": False, "inplace_buffers": False}


@dataclass
class _Step:
    """The addresses of the gradients that the side stream made in this step, and the buckets that receive them."""

    made: list[int] = field(default_factory=list)
    buckets: Buckets | None = None


_step = _Step()


def begin(buckets: Buckets | None) -> None:
    """Forget the gradients of the last step, before a new step, and tell `buckets` of the new ones."""
    _step.made, _step.buckets = [], buckets


def _side() -> torch.cuda.Stream:
    return _side_of(torch.cuda.current_device())


_side_of = cache(torch.cuda.Stream)  # a stream per device


def join() -> None:
    """Make the current stream wait for all gradients of weights, and tell the buckets of no more gradients."""
    _step.buckets = None
    torch.cuda.current_stream().wait_stream(_side())


def use_side_stream(model: nn.Module) -> None:
    """Make every convolution and matrix product of the model compute its weights' gradients on the side stream.

    No such layer may be the last before a residual addition (in all of the catalogue's networks a normalisation stands
    between). The gradient there is shared with the skip path, and eager autograd may add to it in place while the side
    stream reads it. Matrix products take batches of vectors.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and module.padding_mode == "zeros":
            module.__class__ = _SideConv2d
        elif type(module) is nn.Linear and module.bias is not None:
            module.__class__ = _SideLinear


class _SideConv2d(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shape = (list(self.stride), list(self.padding), list(self.dilation), self.groups)
        return _Conv.apply(input, weight, bias, *shape)


class _SideLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return _Linear.apply(input, self.weight, self.bias)


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
    gradient: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Return the gradient of a convolution's weight, laid out like the weight, queued on the side stream."""
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
def _(gradient: Any, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> Tensor:  # noqa: ARG001
    return torch.empty_like(weight)


@torch.library.custom_op("labkit::linear_weight", mutates_args=())
def linear_weight(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient (out, in) of a matrix product's weight, queued on the side stream. `weight` says which."""
    side = _fork(gradient, x)
    with torch.cuda.stream(side):
        place = _place_of(weight)
        made = gradient.t() @ x if place is None else torch.mm(gradient.t(), x, out=place)
    return _hand_over(made, weight if place is not None else None, side)


@linear_weight.register_fake
def _(gradient: Any, x: Any, weight: Any) -> Tensor:  # noqa: ARG001
    return gradient.new_empty(gradient.shape[1], x.shape[1])


def _fork(*read: Tensor) -> torch.cuda.Stream:
    """Return the side stream after making it wait for all work so far; it may read the given tensors."""
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    for tensor in read:
        tensor.record_stream(side)
    return side


def _place_of(weight: Tensor) -> Tensor | None:
    return None if _step.buckets is None else _step.buckets.place_of(weight)


def _hand_over(made: Tensor, placed: Tensor | None, side: Any) -> Tensor:
    """Return `made`, of the side stream, for use after `join`. `placed` is its weight if it lies in a bucket."""
    if placed is None:
        if _step.buckets is not None:  # the bucket copies the gradient on the current stream
            torch.cuda.current_stream().wait_stream(side)
        made.record_stream(torch.cuda.current_stream())
    else:  # a place in the buckets, which the allocator does not get back meanwhile
        assert _step.buckets is not None
        _step.buckets.made(placed, side)
    _step.made.append(made.data_ptr())
    return made


def check_not_copied(gradients: list[Tensor]) -> None:
    """Raise RuntimeError if autograd copied a gradient, which it would do before the side stream has written it."""
    missing = set(_step.made) - {gradient.data_ptr() for gradient in gradients}
    if missing:
        raise RuntimeError(f"autograd copied {len(missing)} of {len(_step.made)} gradients of the side stream")
