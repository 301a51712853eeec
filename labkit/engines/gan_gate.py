"""Does a captured iteration of a WGAN compute what the eager one computes? Two of both, from the same beginning.

Compared are the images and the noise that each read, the critic's estimates before each of its steps, how far every
weight moved, and every running statistic. The same kernels run in both, so what may differ is the order in which some
of them add up. RMSprop and Adam divide by the gradient's own size: a gradient of nearly nothing moves its weight as far
as a large one does, and in whichever direction rounding says. So the changes of all weights are compared by their norm,
and no single weight is judged alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from labkit.engines.adversarial import Adversarial
from labkit.errors import GateError

ITERATIONS = 2


class Tolerance(NamedTuple):
    """How far a captured iteration may be from the eager one: its estimates, relative to the largest of them, and the
    change of all weights of a network, relative to the eager change."""

    estimate: float
    change: float


TOLERANCES = {"fp32": Tolerance(0.01, 0.1), "tf32": Tolerance(0.03, 0.2), "bf16": Tolerance(0.1, 0.4)}


@dataclass(frozen=True)
class Trace:
    """What two iterations did: the estimates (2, 5), what each read, and the changes by network and of statistics."""

    estimates: torch.Tensor
    seen: list[torch.Tensor]
    changes: dict[str, torch.Tensor]


def trace(
    training: Adversarial,
    one_iteration: Callable[[], torch.Tensor],
    what_was_read: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> Trace:
    """Run two iterations of a training that is at its beginning; `what_was_read` gives images and noise of the last.

    Nothing waits for the device between them, so that one which overwrites what the last still reads is found.
    """
    parts = {"generator": training.generator, "critic": training.critic}
    values = {name: [*part.parameters()] for name, part in parts.items()}
    values["statistics"] = list(training.statistics())
    before = {name: [one.detach().clone() for one in of] for name, of in values.items()}
    estimates, seen = [], []
    for _ in range(ITERATIONS):
        estimates.append(one_iteration().clone())
        seen.append(torch.stack([one.double().sum() for one in what_was_read()]))
    changes = {
        name: torch.cat([(now.detach() - old).flatten() for now, old in zip(of, before[name], strict=True)])
        for name, of in values.items()
    }
    return Trace(
        torch.stack(estimates).cpu(), [one.cpu() for one in seen], {name: one.cpu() for name, one in changes.items()}
    )


def compare(plain: Trace, captured: Trace, precision: str) -> dict[str, Any]:
    """The differences beside their tolerances; GateError when an iteration read or computed something else."""
    tolerance = TOLERANCES[precision]
    for number, (expected, seen) in enumerate(zip(plain.seen, captured.seen, strict=True), start=1):
        if not torch.equal(expected, seen):
            raise GateError(f"iteration {number} of the captured engine read other images or noise than the eager one")
    if torch.equal(captured.seen[0], captured.seen[-1]):
        raise GateError("every iteration read the same images and noise: they are not fresh")
    if not bool(torch.isfinite(torch.cat([plain.estimates, captured.estimates])).all()):
        raise GateError("the critic's estimates are not finite")
    apart = (captured.estimates - plain.estimates).abs().max() / plain.estimates.abs().max()
    _check("estimates differ", float(apart), tolerance.estimate)
    of_changes = {}
    for name, expected in plain.changes.items():
        if float(expected.norm()) == 0 and float(captured.changes[name].norm()) == 0:
            continue  # a network without batch norm has no statistics
        moved = float((captured.changes[name] - expected).norm() / expected.norm())
        _check(f"{name} moves otherwise", moved, tolerance.change)
        of_changes[name] = moved
    return {
        "iterations": ITERATIONS,
        "loss_difference": float(apart),
        "loss_tolerance": tolerance.estimate,
        "change_difference": max(of_changes.values()),
        "change_tolerance": tolerance.change,
    }


def _check(what: str, difference: float, tolerance: float) -> None:
    if math.isnan(difference) or difference > tolerance:
        raise GateError(
            f"in {ITERATIONS} captured iterations the {what} from the eager ones by {difference:.2g} of it, more than "
            f"{tolerance:g}"
        )
