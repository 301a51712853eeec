"""Does a captured iteration of a WGAN compute what the eager one computes? Two of both, from the same beginning.

Compared are the images and the noise that each read, the critic's estimates before each of its steps, the mean squares
of gradients that the optimisers keep, how far the weights moved, and every running statistic. The same kernels run in
both, so what may differ is the order in which some of them add up, and which ones cuDNN picks.

RMSprop and Adam divide a gradient by its own size: one of nearly nothing moves its weight as far as a large one does,
in whichever direction rounding says. On a CPU another memory format alone changed the generator's movement by up to
0.17 of itself in FP32 and 0.32 in BF16, while the squares stayed within 0.011 and 0.072 (batches of 2 to 64). The
critic's learning rate halved changes movements by more than 0.5 and squares by 0.56, other images and noise by 1.4 and
0.67. So the squares are held tightly, the movement loosely, and no single weight is judged alone.

A critic whose weights are clipped is clipped before the first iteration, in both: the first clipping moves weights as
DCGAN draws them so far that what the steps do would not be seen beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from labkit.engines.adversarial.training import Adversarial
from labkit.errors import GateError

ITERATIONS = 2


class Tolerance(NamedTuple):
    """How far captured iterations may be from the eager ones.

    The estimates' largest difference over the largest estimate; of the squares of gradients, the running statistics and
    the movement of each network the norm of the difference over the eager norm.
    """

    estimate: float
    squares: float
    movement: float


TOLERANCES = {
    "fp32": Tolerance(0.01, 0.05, 0.4),
    "tf32": Tolerance(0.02, 0.1, 0.45),
    "bf16": Tolerance(0.05, 0.2, 0.48),
}


@dataclass(frozen=True)
class Trace:
    """What two iterations did: the estimates (2, 5), what each read, and what they left by name, flat, on the host."""

    estimates: torch.Tensor
    seen: list[torch.Tensor]
    movement: dict[str, torch.Tensor]
    squares: dict[str, torch.Tensor]
    statistics: torch.Tensor


def trace(
    training: Adversarial,
    one_iteration: Callable[[], torch.Tensor],
    what_was_read: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> Trace:
    """Run two iterations of a training that is at its beginning; `what_was_read` gives images and noise of the last.

    Nothing waits for the device between them, so that one which overwrites what the last still reads is found.
    """
    training.clip()
    parts = {"critic": training.critic, "generator": training.generator}
    before = {name: _flat(part.parameters()) for name, part in parts.items()}
    estimates, seen = [], []
    for _ in range(ITERATIONS):
        estimates.append(one_iteration().clone())
        seen.append(torch.stack([one.double().sum() for one in what_was_read()]))
    return Trace(
        torch.stack(estimates).cpu(),
        [one.cpu() for one in seen],
        {name: _flat(part.parameters()) - before[name] for name, part in parts.items()},
        {name: _flat(of) for name, of in training.moments().items()},
        _flat(training.statistics()),
    )


def _flat(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """All of them in a row, on the host, where it takes nothing from the device whose memory is reported."""
    rows = [value.detach().flatten().cpu() for value in values]
    return torch.cat(rows) if rows else torch.zeros(0)


def compare(plain: Trace, captured: Trace, precision: str) -> dict[str, Any]:
    """The differences beside their tolerances; GateError when an iteration read or computed something else."""
    tolerance = TOLERANCES[precision]
    _check_what_was_read(plain.seen, captured.seen)
    if not bool(torch.isfinite(torch.cat([plain.estimates, captured.estimates])).all()):
        raise GateError("the critic's estimates are not finite")
    estimates = float((captured.estimates - plain.estimates).abs().max() / plain.estimates.abs().max())
    squares = [_apart(of, captured.squares[name]) for name, of in plain.squares.items()]
    squares.append(_apart(plain.statistics, captured.statistics))
    movement = max(_apart(of, captured.movement[name]) for name, of in plain.movement.items())
    found = {"estimates": estimates, "gradients' squares or statistics": max(squares), "weights' movement": movement}
    for (what, difference), most in zip(found.items(), tolerance, strict=True):
        if not difference <= most:
            raise GateError(
                f"in {ITERATIONS} captured iterations the {what} differ from the eager ones' by {difference:.2g} of "
                f"them, more than {most:g}"
            )
    return {
        "iterations": ITERATIONS,
        "loss_difference": estimates,
        "loss_tolerance": tolerance.estimate,
        "squares_difference": max(squares),
        "squares_tolerance": tolerance.squares,
        "change_difference": movement,
        "change_tolerance": tolerance.movement,
    }


def _apart(plain: torch.Tensor, captured: torch.Tensor) -> float:
    """The norm of the difference over the plain norm; 0 of nothing, not a number where one of them has none."""
    if plain.shape != captured.shape:
        return math.nan
    difference = float((captured - plain).norm())
    return difference / float(plain.norm()) if difference else 0.0


def _check_what_was_read(plain: Sequence[torch.Tensor], captured: Sequence[torch.Tensor]) -> None:
    for number, (expected, seen) in enumerate(zip(plain, captured, strict=True), start=1):
        if not torch.equal(expected, seen):
            raise GateError(f"iteration {number} of the captured engine read other images or noise than the eager one")
    for one, what in enumerate(("images", "noise")):
        if captured[0][one] == captured[-1][one]:
            raise GateError(f"every iteration read the same {what}: they are not fresh")
