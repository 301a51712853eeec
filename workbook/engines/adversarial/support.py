"""Reasons why this device cannot train a WGAN with a trial's combination of fields."""

from __future__ import annotations

from labkit.models import MODELS
from workbook.engines import precision
from workbook.engines.adversarial.iterations import LARGEST_CAPTURED
from workbook.engines.support import why_not_captured
from workbook.trials.recipes import ADVERSARIAL
from workbook.trials.trial import Trial

ENGINES = ("eager", "graph")


def why_unsupported(trial: Trial) -> str | None:
    """Return why the trial cannot be trained, as a sentence without a full stop; None if it can."""
    if trial.model not in MODELS or not MODELS[trial.model].noise:
        return f"the gan workload trains a GAN (wgan), and {trial.model} is none"
    if trial.engine not in ENGINES:
        return f"a WGAN is trained by the engines {' and '.join(ENGINES)}, not by {trial.engine}"
    if trial.devices > 1 or trial.arrangement != "alone":
        return "this version trains a WGAN on one device, one at a time"
    if trial.optimizer != (wanted := ADVERSARIAL["optimizer"]):
        return f"a WGAN is updated by {wanted}, not by {trial.optimizer!r}"
    if trial.epochs:
        return "a WGAN has no validation, so no training run of whole epochs"
    if trial.precision == "fp16":
        return "FP16 needs loss scaling, which is not built for two losses with a common network: use BF16"
    if trial.augment:
        return "a generator would learn the flips and crops of augmented images too: train a WGAN without augment"
    if trial.batch == 1:
        return "batch norm cannot train on a single value a channel, and the generator begins with one pixel of noise"
    if reason := precision.why_unsupported(trial) or why_not_captured(trial):
        return reason
    if trial.engine == "graph" and trial.batch > LARGEST_CAPTURED:
        return f"a captured iteration takes batches of {LARGEST_CAPTURED:,} images at most"
    return None
