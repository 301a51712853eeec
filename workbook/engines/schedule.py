"""The learning rate of every step of a training run."""

from __future__ import annotations

from workbook.trials.trial import Trial

WARM_UP_SHARE = 0.2


def learning_rates(trial: Trial, images: int) -> list[float]:
    """Return the learning rate of each step of the trial's epochs, of `images` images each.

    `warm_up` rises linearly over the first fifth, from one device's rate (the trial's rate over its devices) to the
    trial's rate, and stays there (Goyal et al. 2017, arXiv:1706.02677, who rise for 5 epochs of 90). `one_cycle` rises
    linearly over the first quarter to the trial's learning rate and falls linearly to almost nothing (Smith & Topin
    2018, arXiv:1708.07120; PyTorch's OneCycleLR).
    """
    steps = -(-trial.epochs * images // trial.batch_of_step)
    highest = trial.learning_rate
    if trial.schedule == "constant":
        return [highest] * steps
    if trial.schedule == "warm_up":
        alone, rise = highest / trial.devices, max(1, round(WARM_UP_SHARE * steps))
        return [alone + (highest - alone) * min(1.0, step / rise) for step in range(steps)]
    # PyTorch's own scheduler divides by zero at three steps, so its formula is repeated here.
    first, last, peak = highest / 25, highest / 25e4, max(0.25 * (steps + 1) - 1, 0.0)

    def at(step: int) -> float:
        if step < peak:
            return first + (highest - first) * step / peak
        return highest + (last - highest) * (step - peak) / (steps - peak)

    return [at(step) for step in range(steps)]
