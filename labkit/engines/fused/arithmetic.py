"""The numbers of a layer: weights in bytes or in half precision, and what its sums are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.engines.fused.graph import Layer
from labkit.engines.fused.ranges import STEPS


@dataclass(frozen=True)
class Arithmetic:
    """`result = max(sums * scales + biases + other * other_scale, least)`, rounded to `out`; filters are the last axis.

    The weight (K, C, R, S) is int8, float16 or bfloat16, the scales and biases (K,) are float32. Of bytes everything is
    in steps of the output.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    other_scale: float
    least: float
    out: torch.dtype


def in_bytes(layer: Layer, step_in: float, step_out: float | None, step_other: float | None) -> Arithmetic:
    """Symmetric per filter; the steps are what one of the input, the output and the added value is worth.

    Without a step of the output the result stays in FP32.
    """
    assert layer.weight is not None
    per_filter = layer.weight.flatten(1).abs().amax(dim=1).clamp(min=1e-12) / STEPS
    step = 1.0 if step_out is None else step_out
    lowest = float("-inf") if step_out is None else -float(STEPS)
    return Arithmetic(
        weight=(layer.weight / per_filter[:, None, None, None]).round().clamp(-STEPS, STEPS).to(torch.int8),
        scales=(per_filter.double() * step_in / step).float(),
        biases=(_bias(layer).double() / step).float(),
        other_scale=(step_other or 0.0) / step,
        least=0.0 if layer.relu else lowest,
        out=torch.float32 if step_out is None else torch.int8,
    )


def in_half(layer: Layer, kind: torch.dtype, *, is_last: bool) -> Arithmetic:
    """Float16 or bfloat16; the logits stay in FP32."""
    assert layer.weight is not None
    return Arithmetic(
        weight=layer.weight.to(kind),
        scales=torch.ones(len(layer.weight), device=layer.weight.device),
        biases=_bias(layer).float(),
        other_scale=1.0,
        least=0.0 if layer.relu else float("-inf"),
        out=torch.float32 if is_last else kind,
    )


def _bias(layer: Layer) -> torch.Tensor:
    assert layer.weight is not None
    return torch.zeros(len(layer.weight), device=layer.weight.device) if layer.bias is None else layer.bias
