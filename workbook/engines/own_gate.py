"""Does a mode of the user's network compute what its eager loop computes?

Both take a few steps on one batch, from the same weights, with nothing dropped at random. Compared are the losses and
the first gradients, or the predictions. The first loss is also compared with that of strict FP32. A network that
magnifies rounding has other gradients in each mode. So gradients beyond the tolerance are compared with those of the
eager loop whose weights are rounded once more: they may differ as much as rounding alone makes them differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from workbook.engines.comparison import checked
from workbook.engines.gate import ENGINE_TOLERANCES, FURTHER, LOGIT_TOLERANCES, TOO_ROUGH
from workbook.engines.own_network import OwnStep
from workbook.engines.precision import TOLERANCES
from workbook.errors import GateError

STEPS = 3
LOSS_OF_PRECISION = {"fp32": 1e-4, "default": 5e-3, "tf32": 5e-3, "fp16": 2e-2, "bf16": 2e-2}  # of strict FP32's
OF_WEIGHTS = {"int8": 0.1, "fp8": 0.2}  # how far quantised weights may move predictions from those of BF16
ROUNDING = 2.0**-9  # of BF16, the coarsest


@dataclass(frozen=True)
class Seen:
    """What a few steps gave: a loss each and the first gradients, on the host; or the predicted numbers."""

    losses: list[float]
    gradients: list[torch.Tensor]
    answer: torch.Tensor | None = None


def see(step: OwnStep) -> Seen:
    """Run a few steps and return what they gave. Raise GateError for a loss that is not finite, or no gradient."""
    if not step.training:
        return Seen([], [], step().float().cpu())
    losses, gradients = [], []
    for number in range(STEPS):
        value = step()
        if number == 0:
            gradients = [weight.grad.float().cpu() for weight in step.model.parameters() if weight.grad is not None]
        losses.append(value.clone())
    values = [float(loss) for loss in losses]
    if not all(map(math.isfinite, values)):
        raise GateError(f"the losses of {step.own.name} are not finite: {', '.join(f'{v:.4g}' for v in values)}")
    if not any(bool(gradient.any()) for gradient in gradients):
        raise GateError(f"no weight of {step.own.name} gets a gradient from its loss")
    return Seen(values, gradients)


def rounded(step: OwnStep) -> list[torch.Tensor]:
    """Return the first gradients of an eager training whose weights are rounded once more, at random."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in step.model.parameters():
            noise = torch.rand(weight.shape, generator=generator).to(weight) - 0.5
            weight.mul_(1 + ROUNDING * noise)
    step()
    return [weight.grad.float().cpu() for weight in step.model.parameters() if weight.grad is not None]


def distance(expected: list[torch.Tensor], seen: list[torch.Tensor]) -> float:
    """Return the norm of the difference of all gradients over the norm of those expected."""
    if len(expected) != len(seen):
        return math.inf
    apart = math.hypot(*(float((one - other).norm()) for one, other in zip(expected, seen, strict=True)))
    total = math.hypot(*(float(gradient.norm()) for gradient in expected))
    return apart / total if total else math.inf


def compare(plain: Seen, tuned: Seen, precision: str, own: float) -> dict[str, Any]:
    """Return the differences with their tolerances. Raise GateError beyond one.

    `own` is the distance that rounding alone gives the eager gradients; where it is large, only losses are compared.
    """
    if plain.answer is not None and tuned.answer is not None:
        size = float(plain.answer.norm())
        apart = float((tuned.answer - plain.answer).norm()) / size if size else math.inf
        judged = {"answer": ("prediction", apart, (ENGINE_TOLERANCES | OF_WEIGHTS)[precision])}
        return {"steps": 1, **checked("the {} differs", judged, "its norm")}
    tolerance = TOLERANCES[precision]
    worst = max(abs(t - p) / max(abs(p), 1e-12) for p, t in zip(plain.losses, tuned.losses, strict=True))
    judged = {"loss": ("loss", worst, max(tolerance.loss, 0.05 * own))}
    if own <= TOO_ROUGH:
        apart = distance(plain.gradients, tuned.gradients)
        judged["gradient"] = ("first gradient", apart, max(tolerance.change, FURTHER * own))
    facts = checked(f"in {STEPS} steps the checked mode's {{}} differs from the eager loop's", judged, "its size")
    return {"steps": STEPS, "rounding_difference": own, **facts}


def compare_with_strict(strict: torch.Tensor, seen: torch.Tensor, precision: str, *, training: bool) -> dict[str, Any]:
    """Compare the value of an eager step in a precision with strict FP32's, from the same weights and samples."""
    limits = LOSS_OF_PRECISION if training else LOGIT_TOLERANCES
    size = float(strict.float().norm())
    apart = float((seen.float() - strict.float()).norm()) / size if size else math.inf
    what = "loss" if training else "prediction"
    return checked("the {} differs from strict FP32's", {"strict": (what, apart, limits[precision])}, "its size")
