"""Gradients of weights on a stream of their own, beside the backward pass that does not wait for them.

Going back through a network, only the gradient of each layer's input is needed to go on; the gradient of its weights is
not needed before the update. On small images neither fills the device, so both run at once: in the captured graph the
side stream becomes a second branch. `join()` closes it before the update.

What the side stream reads must not be overwritten meanwhile: `record_stream` keeps the allocator from it, and Inductor
must neither reuse buffers nor write in place (`INDUCTOR_OPTIONS`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

INDUCTOR_OPTIONS = {"allow_buffer_reuse": False, "inplace_buffers": False}


@cache
def _side() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def join() -> None:
    """Let the current stream wait for all gradients of weights."""
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
        return gradient @ weight, linear_weight(gradient, x), gradient.sum(0)


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
        if made.stride() != weight.stride():
            made = torch.empty_like(weight).copy_(made)
    return _hand_over(made)


@conv_weight.register_fake
def _(gradient: Any, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: Any) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(weight)


@torch.library.custom_op("labkit::linear_weight", mutates_args=())
def linear_weight(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of a matrix product's weight (out, in), queued on the side stream."""
    side = _fork(gradient, x)
    with torch.cuda.stream(side):
        made = gradient.t() @ x
    return _hand_over(made)


@linear_weight.register_fake
def _(gradient: Any, x: Any) -> torch.Tensor:
    return gradient.new_empty(gradient.shape[1], x.shape[1])


def _fork(*read: torch.Tensor) -> torch.cuda.Stream:
    """The side stream, once all that is queued so far is done."""
    side = _side()
    side.wait_stream(torch.cuda.current_stream())
    for tensor in read:
        tensor.record_stream(side)
    return side


def _hand_over(made: torch.Tensor) -> torch.Tensor:
    """A tensor of the side stream that the current one will use after `join`."""
    made.record_stream(torch.cuda.current_stream())
    _made.append(made.data_ptr())
    return made


_made: list[int] = []


def forget_made() -> None:
    """Begin to note which gradients are made."""
    _made.clear()


def check_not_copied(gradients: list[torch.Tensor]) -> None:
    """RuntimeError when autograd copied a gradient: it would have read it before the side stream had written it."""
    missing = set(_made) - {gradient.data_ptr() for gradient in gradients}
    if missing:
        raise RuntimeError(f"autograd copied {len(missing)} of {len(_made)} gradients of the side stream")
