"""Correctness check: does a captured iteration of a WGAN compute what the eager one does? Compares two of each.

Both start from one state. The check compares the images and noise that each iteration read, the critic's estimates
before each of its steps, the mean squares of gradients that the optimisers keep, how far the weights moved, and every
running statistic. Both run the same kernels: only the order of some sums and cuDNN's choice of kernels may differ.

RMSprop divides a gradient by its own size: a gradient near zero moves its weight as far as a large one, in a direction
that rounding decides. On a CPU, another memory format alone changed the generator's movement by up to 0.17 of
itself in FP32 and 0.32 in BF16, and the squares by 0.011 and 0.072 (batches of 2 to 64). Half the critic's learning
rate changes movements by more than 0.5 and squares by 0.56, other images and noise by 1.4 and 0.67. So the tolerance of
the squares is tight, that of movement is loose, and no single weight is judged alone.

The critic's weights are clipped before the first iteration, in both. The first clipping moves weights as DCGAN draws
them so far that the changes of the steps would not be seen beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbook.engines.comparison import checked
from workbook.engines.gan_training import Adversarial
from workbook.engines.gate import check_what_was_read
from workbook.errors import GateError

ITERATIONS = 2


# For estimates: the largest difference over the largest estimate. For gradients' squares or running statistics, and for
# each network's movement: the norm of the difference over the eager norm.
TOLERANCES = {"fp32": (0.01, 0.05, 0.4), "tf32": (0.02, 0.1, 0.45), "bf16": (0.05, 0.2, 0.48)}


@dataclass(frozen=True)
class Trace:
    """Results of two iterations: estimates (2, 5), data read, movement, squares and statistics, flat, on the host."""

    estimates: torch.Tensor
    seen: dict[str, list[torch.Tensor]]
    movement: dict[str, torch.Tensor]
    squares: dict[str, torch.Tensor]
    statistics: torch.Tensor


def trace(
    training: Adversarial,
    one_iteration: Callable[[], torch.Tensor],
    what_was_read: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> Trace:
    """Run two iterations of a training at its beginning. `what_was_read` returns images and noise of the last one.

    Nothing waits for the device between them. So the gate finds an iteration that overwrites what the one before reads.
    """
    training.clip()
    before = _by_part(training)
    estimates, seen = [], []
    for _ in range(ITERATIONS):
        estimates.append(one_iteration().clone())
        seen.append(torch.stack([read.double().sum() for read in what_was_read()]))
    images, noise = torch.stack(seen, dim=1).cpu()
    return Trace(
        torch.stack(estimates).cpu(),
        {"images": list(images), "noise": list(noise)},
        {name: after - before[name] for name, after in _by_part(training).items()},
        {name: _flat(squares) for name, squares in training.moments().items()},
        _flat(training.statistics()),
    )


def _by_part(training: Adversarial) -> dict[str, torch.Tensor]:
    return {"critic": _flat(training.critic.parameters()), "generator": _flat(training.generator.parameters())}


def _flat(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all values in a row, on the host, since the device's peak memory is reported."""
    rows = [value.detach().flatten().cpu() for value in values]
    return torch.cat(rows) if rows else torch.zeros(0)


def compare(plain: Trace, captured: Trace, precision: str) -> dict[str, Any]:
    """Return the differences with their tolerances. Raise GateError if an iteration read or computed something else."""
    check_what_was_read(plain.seen, captured.seen, "iteration")
    if not bool(torch.isfinite(torch.cat([plain.estimates, captured.estimates])).all()):
        raise GateError("the critic's estimates are not finite")
    estimates = float((captured.estimates - plain.estimates).abs().max() / plain.estimates.abs().max())
    squares = [_apart(of, captured.squares[name]) for name, of in plain.squares.items()]
    squares.append(_apart(plain.statistics, captured.statistics))
    movements = [_apart(of, captured.movement[name]) for name, of in plain.movement.items()]
    of_estimates, of_squares, of_movement = TOLERANCES[precision]
    differences = {
        "loss": ("estimates", estimates, of_estimates),
        "squares": ("gradients' squares or statistics", float(np.max(squares)), of_squares),
        "change": ("weights' movement", float(np.max(movements)), of_movement),
    }
    sentence = f"in {ITERATIONS} captured iterations the {{}} differ from the eager iterations'"
    return {"iterations": ITERATIONS, **checked(sentence, differences, "them")}


def _apart(plain: torch.Tensor, captured: torch.Tensor) -> float:
    """Return the norm of the difference over the eager norm: 0 if equal, infinite over 0, NaN for different shapes."""
    if plain.shape != captured.shape:
        return math.nan
    difference, norm = float((captured - plain).norm()), float(plain.norm())
    if not difference:
        return 0.0
    return difference / norm if norm else math.inf
