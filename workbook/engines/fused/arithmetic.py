"""The numbers of a layer: ranges of INT8 activations, weights in bytes or in half precision, factors of its sums.

A range is found from calibration images. It is symmetric, one for a whole value, and not the largest magnitude seen. It
is the range whose rounding and clipping together make the smallest squared error, relative to each image's own
activations. Otherwise a few images with activations a hundred times larger would set a step at which nothing is left of
the rest. The Dell paper's TensorRT guards against them by the entropy of a histogram. Values that a pooling or a
concatenation only moves share a range with its result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from scipy.cluster.hierarchy import DisjointSet

from workbook.engines.fused.graph import Graph, Layer

STEPS = 127
OCTAVES, BINS_OF_OCTAVE = 20, 64  # of the histogram of magnitudes, from the largest down
TRIED_OCTAVES, TRIED_OF_OCTAVE = 12, 16  # of the ranges that are tried, from the largest down
_MOVING = ("max_pool", "resample", "concatenate")


@torch.inference_mode()
def calibrate(graph: Graph, batches: Iterable[torch.Tensor]) -> dict[int, float]:
    """Return what one step is worth, for every value by its number. `batches` are images (n, 3, H, W).

    The images are run twice. Raise ValueError if there are none, or if an activation is not finite.
    """
    images = list(batches)
    if not images:
        raise ValueError("no calibration images were given")
    group = groups(graph)
    largest: dict[int, torch.Tensor] = {}

    def see_largest(number: int, value: torch.Tensor) -> None:
        most = value.abs().amax().float()
        largest[group[number]] = torch.maximum(largest[group[number]], most) if group[number] in largest else most

    for batch in images:
        graph.run(batch, see_largest)
    ranges = {number: float(most) for number, most in largest.items()}
    if any(not 0 <= most < float("inf") for most in ranges.values()):
        raise ValueError("an activation is not finite on the calibration images")
    bins = OCTAVES * BINS_OF_OCTAVE
    histograms = {number: torch.zeros(bins, dtype=torch.float64, device=images[0].device) for number in ranges}

    def see_all(number: int, value: torch.Tensor) -> None:
        if most := ranges[group[number]]:
            histograms[group[number]] += histogram(value, most)

    for batch in images:
        graph.run(batch, see_all)
    steps = {number: best_range(histograms[number], most) / STEPS for number, most in ranges.items()}
    return {number: steps[group[number]] or 1.0 for number in range(graph.values)}  # 1 for a value that is always 0


def histogram(value: torch.Tensor, largest: float) -> torch.Tensor:
    """Return magnitudes of (n, ...) in bins of parts of octaves, `largest` in the last. Each of the n counts the same.

    Float64 (OCTAVES * BINS_OF_OCTAVE,). Magnitudes below all bins are left out: they are rounded to 0 either way.
    """
    magnitudes = value.flatten(1).abs().float()
    weights = (1 / (magnitudes**2).sum(dim=1, keepdim=True).clamp(min=1e-30)).expand_as(magnitudes)
    place = ((magnitudes / largest).clamp(min=1e-30).log2() + OCTAVES) * BINS_OF_OCTAVE
    seen = place >= 0
    bins = OCTAVES * BINS_OF_OCTAVE
    return torch.bincount(place[seen].long().clamp(max=bins - 1), weights[seen].double(), minlength=bins)


def best_range(counts: torch.Tensor, largest: float) -> float:
    """Return the range with the smallest squared error over magnitudes with this histogram."""
    place = torch.arange(len(counts), device=counts.device, dtype=torch.float64)
    centers = largest * 2 ** ((place + 0.5) / BINS_OF_OCTAVE - OCTAVES)
    down = torch.arange(TRIED_OCTAVES * TRIED_OF_OCTAVE, device=counts.device, dtype=torch.float64) / TRIED_OF_OCTAVE
    tried = largest * 2**-down
    step = tried[:, None] / STEPS
    rounded = (centers / step).round().clamp(max=STEPS) * step
    errors = ((rounded - centers) ** 2 * counts).sum(dim=1)
    return float(tried[errors.argmin()])


def groups(graph: Graph) -> list[int]:
    """Return for each value the smallest number among the values that share its range."""
    sharing = DisjointSet(range(graph.values))
    for layer in graph.layers:
        if layer.kind in _MOVING:
            for number in layer.inputs:
                sharing.merge(number, layer.output)
    return [min(sharing.subset(number)) for number in range(graph.values)]


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
