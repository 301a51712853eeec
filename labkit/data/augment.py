"""What happens to a batch on the device: random flip and crop, normalisation, scaling (needs torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch.nn import functional

Interpolation: TypeAlias = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class Augment:
    """Random changes of training images: a flip of every second one on average, and a crop of the padded image."""

    flip: bool = False
    crop: bool = False
    pad_px: int = 4


class Preparation:
    """Turns uint8 images into a model's input: augmented, normalised, scaled; all vectorised and on one device.

    `mean` and `std` are per channel in units of 0..255; a `std` under one grey level counts as one, so that a constant
    channel stays finite. Cropping pads with black (0), as torchvision's RandomCrop does. With `image_px` the normalised
    image is scaled up to that side, by `nearest` or `bilinear` interpolation (align_corners=False). The random numbers
    are drawn on the device by a generator seeded with `seed`, so they differ between kinds of device.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        seed: int,
        augment: Augment,
        image_px: int | None,
        interpolation: Interpolation,
    ) -> None:
        self._mean = torch.tensor(mean, device=device).view(1, 3, 1, 1)
        self._std = torch.tensor(std, device=device).clamp_min(1.0).view(1, 3, 1, 1)
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)
        self._augment = augment
        self._image_px = image_px
        self._interpolation = interpolation

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (B, 3, H, W) to float32 (B, 3, image_px or H, image_px or W), contiguous."""
        if self._augment.flip or self._augment.crop:
            images = self._move(images)
        ready = images.float().sub_(self._mean).div_(self._std)
        if self._image_px is not None and self._image_px != ready.shape[-1]:
            corners = None if self._interpolation == "nearest" else False
            size = (self._image_px, self._image_px)
            ready = functional.interpolate(ready, size=size, mode=self._interpolation, align_corners=corners)
        return ready

    def _move(self, images: torch.Tensor) -> torch.Tensor:
        """Flip and crop every image on its own, in one gather."""
        batch, channels, height, width = images.shape
        device, generator = images.device, self._generator
        x = torch.arange(width, device=device).expand(batch, width)
        y = torch.arange(height, device=device).expand(batch, height)
        if self._augment.flip:
            flipped = torch.rand(batch, 1, device=device, generator=generator) < 0.5
            x = torch.where(flipped, width - 1 - x, x)
        if self._augment.crop:
            pad = self._augment.pad_px
            images = functional.pad(images, (pad, pad, pad, pad))
            shift = torch.randint(0, 2 * pad + 1, (2, batch, 1), device=device, generator=generator)
            x, y = x + shift[0], y + shift[1]
        sample = torch.arange(batch, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[:, None, None]
        return images[sample, channel, y[:, None, :, None], x[:, None, None, :]]
