"""The numbers of a layer: weights in bytes or in half precision, and what its sums are multiplied by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from labkit.engines.fused.graph import Layer
from labkit.engines.fused.ranges import STEPS

# Where a result is cut: bytes symmetric, FP16 at its largest number, which an activation must not turn into infinity.
MOST = {torch.int8: float(STEPS), torch.float16: 65504.0, torch.float32: float("inf")}


@dataclass(frozen=True)
class Arithmetic:
    """`result = sums * scales + biases + other * other_scale`, cut to `least` and `most` and rounded to `out`.

    The weight (K, C, R, S) is int8, float16 or bfloat16, the scales and biases (K,) are float32. Where the output is
    bytes everything is in its steps, each worth `step`, and `widens` says whether it is wanted in FP16 beside them.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    other_scale: float
    least: float
    most: float
    out: torch.dtype
    step: float = 1.0
    widens: bool = False


def in_bytes(
    layer: Layer,
    step_in: float,
    step_out: float | None,
    step_other: float | None = None,
    *,
    out: torch.dtype = torch.int8,
    widens: bool = False,
) -> Arithmetic:
    """Products of bytes, symmetric per filter. The steps are what one of the input, the output and the added value is
    worth; an added value in FP16 has none (None), nor has an output that is not in bytes.
    """
    assert layer.weight is not None
    per_filter = layer.weight.flatten(1).abs().amax(dim=1).clamp(min=1e-12) / STEPS
    step = 1.0 if step_out is None else step_out
    most = MOST[out]
    return Arithmetic(
        weight=(layer.weight / per_filter[:, None, None, None]).round().clamp(-STEPS, STEPS).to(torch.int8),
        scales=(per_filter.double() * step_in / step).float(),
        biases=(_bias(layer).double() / step).float(),
        other_scale=(1.0 if step_other is None else step_other) / step,
        least=0.0 if layer.relu else -most,
        most=most,
        out=out,
        step=step,
        widens=widens,
    )


def in_half(
    layer: Layer,
    kind: torch.dtype,
    *,
    is_last: bool = False,
    step: float | None = None,
    step_other: float | None = None,
    widens: bool = False,
) -> Arithmetic:
    """Float16 or bfloat16; the logits stay in FP32.

    With `step`, what one of the output is worth, the result is in bytes, and `step_other` and `widens` are as of
    `in_bytes`.
    """
    assert layer.weight is not None
    per_one, most = (1.0, float("inf")) if step is None else (1 / step, MOST[torch.int8])
    return Arithmetic(
        weight=(layer.weight * per_one).to(kind),
        scales=torch.ones(len(layer.weight), device=layer.weight.device),
        biases=_bias(layer).float() * per_one,
        other_scale=(1.0 if step_other is None else step_other) * per_one,
        least=0.0 if layer.relu else -most,
        most=most,
        out=torch.float32 if is_last else kind if step is None else torch.int8,
        step=1.0 if step is None else step,
        widens=widens,
    )


def _bias(layer: Layer) -> torch.Tensor:
    assert layer.weight is not None
    return torch.zeros(len(layer.weight), device=layer.weight.device) if layer.bias is None else layer.bias
