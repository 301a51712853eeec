"""Where batch norm has nothing to normalise by, in any framework. Needs none of them."""

from __future__ import annotations

from labkit.models import MODELS
from labkit.trial import Trial

# Families whose last layers with batch norm see 32x32 images as a single pixel; Inception-v3 does not take those.
ENDS_WITH_ONE_PIXEL = ("resnet", "googlenet", "inception_bn")


def why_not_normalised(trial: Trial) -> str | None:
    """Why a batch of one image cannot be trained on; None where it can, and of all larger batches."""
    entry = MODELS.get(trial.model)
    if entry is None or trial.batch_of_device > 1 or trial.image_px != 32 or entry.family not in ENDS_WITH_ONE_PIXEL:
        return None
    if entry.family == "resnet" and trial.stem != "imagenet":
        return None
    return "batch norm cannot train on a single value a channel, which is what a batch of 1 leaves of 32x32 images"
