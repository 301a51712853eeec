"""How much a step of each INT8 activation is worth: ranges from calibration images, symmetric, one for a whole value.

A range is not the largest magnitude seen but the one whose rounding and clipping together make the smallest squared
error over the calibration images (TensorRT, which the Dell paper used, chooses by the entropy of the same histogram).
Values that are only moved, by a pooling or a concatenation, share a range with where they go.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from labkit.engines.fused.graph import Graph

BINS = 2048
CANDIDATES = 120  # ranges that are tried, from the largest magnitude down
SMALLEST = 0.1  # of the largest magnitude
STEPS = 127
_MOVING = ("max_pool", "resample", "concatenate")


@torch.inference_mode()
def calibrate(graph: Graph, batches: Iterable[torch.Tensor]) -> dict[int, float]:
    """What one step is worth, by value; every value but the logits has one. `batches` are images (n, 3, H, W).

    The images are gone through twice. ValueError where there are none, or where an activation is not finite.
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
    histograms = {number: torch.zeros(BINS, device=images[0].device) for number in ranges}

    def see_all(number: int, value: torch.Tensor) -> None:
        if most := ranges[group[number]]:
            histograms[group[number]] += torch.histc(value.abs().float(), BINS, 0.0, most)

    for batch in images:
        graph.run(batch, see_all)
    steps = {number: best_range(histograms[number], most) / STEPS for number, most in ranges.items()}
    return {number: steps[group[number]] or 1.0 for number in range(graph.values)}  # of a value that is always 0


def best_range(histogram: torch.Tensor, largest: float) -> float:
    """The range with the smallest squared error over magnitudes whose `histogram` reaches from 0 to `largest`."""
    counts = histogram.double()
    centers = (torch.arange(len(counts), device=counts.device) + 0.5) * (largest / len(counts))
    tried = torch.linspace(SMALLEST, 1.0, CANDIDATES, device=counts.device, dtype=torch.float64) * largest
    step = tried[:, None] / STEPS
    rounded = (centers / step).round().clamp(max=STEPS) * step
    errors = ((rounded - centers) ** 2 * counts).sum(dim=1)
    return float(tried[errors.argmin()])


def groups(graph: Graph) -> list[int]:
    """For each value the smallest number among those that share its range."""
    head = list(range(graph.values))

    def find(number: int) -> int:
        while head[number] != number:
            number = head[number]
        return number

    for layer in graph.layers:
        if layer.kind in _MOVING:
            for number in layer.inputs:
                one, other = sorted((find(number), find(layer.output)))
                head[other] = one
    return [find(number) for number in range(graph.values)]
