"""A few fixed batches, ready before the first step: what a model is asked in inference (needs torch)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from labkit.data.augment import TORCH_FORMATS, Preparation
from labkit.data.dataset import DataSet, Split
from labkit.trial import Trial

BATCHES = 3  # so that no step sees the images of the one before; small batches may still come from a cache
AT_ONCE = 500  # images made ready at a time


class Pool:
    """Batches of validation images, taken in turn. `where` is `device` (normalised, as the model takes them) or `host`.

    On the host they are what a service receives: uint8 (B, 3, H, W), in pinned memory where the device is a GPU.
    `ready(bytes)` makes the model's input of such a batch, on the device.
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
        chosen = [_pixels(data.val, first, trial.batch) for first in _firsts(len(data.val))]
        if where == "host":
            pinned = self._device.type == "cuda"
            self.batches = [pixels.pin_memory() if pinned else pixels for pixels in chosen]
        else:
            self.batches = [self.all_ready(pixels) for pixels in chosen]
        self._next = 0

    def __next__(self) -> torch.Tensor:
        """The next batch, where it lies."""
        batch = self.batches[self._next]
        self._next = (self._next + 1) % len(self.batches)
        return batch

    def rewind(self) -> None:
        """Back to the first batch."""
        self._next = 0

    def empty(self) -> torch.Tensor:
        """A place on the device for one of these batches."""
        one = self.batches[0]
        return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=self._device)

    def ready(self, pixels: torch.Tensor) -> torch.Tensor:
        """The model's input from uint8 images on the device."""
        images = self._prepare(pixels).to(self._dtype)
        return images.contiguous(memory_format=TORCH_FORMATS[self._trial.memory_format])

    def all_ready(self, pixels: torch.Tensor) -> torch.Tensor:
        """The same of a whole batch, in parts: the FP32 images between would take twice its memory and more."""
        parts = [self.ready(part.to(self._device)) for part in pixels.split(AT_ONCE)]
        return torch.cat(parts).contiguous(memory_format=TORCH_FORMATS[self._trial.memory_format])


def _firsts(images: int) -> list[int]:
    """Where each batch begins. From a third of the split on they overlap: a batch of all images is the same again."""
    return [k * max(1, images // BATCHES) for k in range(BATCHES)]


def _pixels(split: Split, first: int, batch: int) -> torch.Tensor:
    """uint8 (B, 3, H, W): the split's images from `first` on, from the beginning again after its last."""
    return torch.from_numpy(split.images[np.arange(first, first + batch) % len(split)])
