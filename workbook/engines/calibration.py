"""Choose the images from which INT8's ranges are found: the Dell paper's protocol, on images that are never scored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labkit.data import DataSet
from labkit.data.augment import Preparation
from workbook.trials.trial import Trial

BATCHES, IMAGES = 50, 25  # Dell V100, section V: 50 batches of 25 images


def protocol(data: DataSet) -> str:
    """Return which images these are, in a record's words."""
    of = "images of the validation set that are not scored" if data.validation_only else "training images"
    return f"{BATCHES} batches of {IMAGES} {of}, spread evenly over the split"


def facts_of(batches: list[torch.Tensor], data: DataSet) -> dict[str, Any]:
    """Return a record's facts on the calibration batches."""
    return {"batches": len(batches), "images": sum(map(len, batches)), "protocol": protocol(data)}


def calibration_batches(trial: Trial, data: DataSet) -> list[torch.Tensor]:
    """Return float32 batches (25, 3, image_px, image_px) of training images, normalised, on the trial's device.

    The images are spread evenly over the training split, whatever its order. A smaller split gives each image once.
    """
    prepare = Preparation(
        device=torch.device(trial.device),
        mean=data.mean,
        std=data.std,
        image_px=trial.image_px,
    )
    chosen = np.unique(np.linspace(0, len(data.train) - 1, BATCHES * IMAGES).astype(np.int64))
    pixels = torch.from_numpy(data.train.images[chosen])
    return [prepare(few.to(trial.device)) for few in pixels.split(IMAGES)]
