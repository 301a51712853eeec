"""The numbers of a layer: weights in bytes or in half precision, and the factors of its sums."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workbook.engines.fused.graph import Layer
from workbook.engines.fused.ranges import STEPS

# Where a result is cut: bytes symmetrically, FP16 at its largest number, so that no activation becomes infinite.
MOST = {torch.int8: float(STEPS), torch.float16: 65504.0, torch.float32: float("inf")}


@dataclass(frozen=True)
class Arithmetic:
    """The numbers of `result = sums * scales + biases + other * other_scale`, cut to `least`..`most`, rounded to `out`.

    The weight (K, C, R, S) is int8, float16 or bfloat16; scales and biases (K,) are float32. If the output is bytes,
    all numbers are in the output's steps, each worth `step`, and `widens` says whether FP16 is wanted beside the bytes.
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
    """Return the arithmetic for products of bytes, symmetric per filter. A step is what one unit is worth.

    `step_other` is None for an added value in FP16, `step_out` for an output that is not in bytes.
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
    """Return the arithmetic in float16 or bfloat16; the logits stay in FP32.

    With `step`, the worth of one unit of the output, the result is bytes; `step_other` and `widens` as in `in_bytes`.
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
