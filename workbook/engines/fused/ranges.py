"""The worth of a step of each INT8 activation: ranges from calibration images, symmetric, one for a whole value.

A range is not the largest magnitude seen. It is the range whose rounding and clipping together make the smallest
squared error, relative to each image's own activations. Otherwise a few images with activations a hundred times larger
would set a step at which nothing is left of the rest. The Dell paper's TensorRT guards against them by the entropy of a
histogram. Values that a pooling or a concatenation only moves share a range with its result.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from scipy.cluster.hierarchy import DisjointSet

from workbook.engines.fused.graph import Graph

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
