"""Images for inference: the timed batches, and those from which INT8's ranges are found.

Timed batches are validation images, prepared before the first step. Ranges are found by the Dell paper's protocol, on
images that are never scored.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from labkit.data import DataSet
from labkit.data.augment import TORCH_FORMATS, Preparation
from workbook.trials.trial import Trial

BATCHES = 3  # so that no step has the images of the previous step; small batches may still stay in a CPU or GPU cache
AT_ONCE = 500  # images prepared at a time


class Pool:
    """Batches of validation images, taken in turn. `where` is `device` or `host`.

    On the device, batches are normalised model inputs. On the host, batches are uint8 (B, 3, H, W) as a service
    receives them, in pinned memory if the device is a GPU. `ready(pixels)` turns uint8 images into the model's input.
    """

    def __init__(self, trial: Trial, data: DataSet, *, dtype: torch.dtype, where: Literal["device", "host"]) -> None:
        self._trial, self._dtype = trial, dtype
        self._device = torch.device(trial.device)
        self._prepare = Preparation(
            device=self._device,
            mean=data.mean,
            std=data.std,
            image_px=trial.image_px,
            memory_format=trial.memory_format,  # type: ignore[arg-type]
        )
        images = len(data.val)
        # Batches over a third of the split overlap, and a full one repeats it. After the last image comes the first.
        places = [np.arange(trial.batch) + k * max(1, images // BATCHES) for k in range(BATCHES)]
        chosen = [torch.from_numpy(data.val.images[place % images]) for place in places]
        if where == "host":
            pinned = self._device.type == "cuda"
            self.batches = [pixels.pin_memory() if pinned else pixels for pixels in chosen]
        else:
            self.batches = [self.all_ready(pixels) for pixels in chosen]
        self._next = 0

    def __next__(self) -> torch.Tensor:
        """Return the next batch, on the device or the host according to `where`."""
        batch = self.batches[self._next]
        self._next = (self._next + 1) % len(self.batches)
        return batch

    def rewind(self) -> None:
        """Go back to the first batch."""
        self._next = 0

    def empty(self) -> torch.Tensor:
        """Return an uninitialised tensor on the device with the shape, strides and type of a batch."""
        batch = self.batches[0]
        return torch.empty_strided(batch.shape, batch.stride(), dtype=batch.dtype, device=self._device)

    def ready(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the model's input made from uint8 images on the device."""
        images = self._prepare(pixels).to(self._dtype)
        return images.contiguous(memory_format=TORCH_FORMATS[self._trial.memory_format])

    def all_ready(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the input made from a whole batch, in parts: its FP32 images would take over twice its memory."""
        parts = [self.ready(part.to(self._device)) for part in pixels.split(AT_ONCE)]
        return torch.cat(parts).contiguous(memory_format=TORCH_FORMATS[self._trial.memory_format])


CALIBRATION_BATCHES, CALIBRATION_IMAGES = 50, 25  # Dell V100, section V: 50 batches of 25 images


def protocol(data: DataSet) -> str:
    """Return which images these are, in a record's words."""
    of = "images of the validation set that are not scored" if data.validation_only else "training images"
    return f"{CALIBRATION_BATCHES} batches of {CALIBRATION_IMAGES} {of}, spread evenly over the split"


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
    chosen = np.unique(np.linspace(0, len(data.train) - 1, CALIBRATION_BATCHES * CALIBRATION_IMAGES).astype(np.int64))
    pixels = torch.from_numpy(data.train.images[chosen])
    return [prepare(few.to(trial.device)) for few in pixels.split(CALIBRATION_IMAGES)]
