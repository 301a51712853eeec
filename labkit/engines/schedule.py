"""The learning rate of every step of a training run."""

from __future__ import annotations

from labkit.trial import Trial


def learning_rates(trial: Trial, images: int) -> list[float]:
    """The learning rate of each step of the trial's epochs.

    `one_cycle` rises linearly over the first quarter to the trial's learning rate and falls linearly to almost nothing
    (Smith & Topin 2018, arXiv:1708.07120; PyTorch's OneCycleLR).
    """
    steps = -(-trial.epochs * images // trial.batch_of_step)
    highest = trial.learning_rate
    if trial.schedule == "constant":
        return [highest] * steps
    # PyTorch's own scheduler divides by zero at three steps, so its formula stands here.
    first, last, peak = highest / 25, highest / 25e4, max(0.25 * (steps + 1) - 1, 0.0)

    def at(step: int) -> float:
        if step < peak:
            return first + (highest - first) * step / peak
        return highest + (last - highest) * (step - peak) / (steps - peak)

    return [at(step) for step in range(steps)]
