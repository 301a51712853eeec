"""Prepare a batch on the device: random flip and crop, normalisation, scaling, memory format (needs torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch.nn import functional

from labkit.data.dataset import Images, Levels
from labkit.errors import one_of

MemoryFormat: TypeAlias = Literal["contiguous", "channels_last"]
Moves: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None]

# Up to this number of values (its GRAIN_SIZE), torch runs an operator on the calling thread, else on all cores. All
# cores save a quarter of a batch's time on an idle machine, but cost several batches' time beside another process.
_ONE_THREAD = 32_768
TORCH_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Augment:
    """Random changes of training images: a flip with probability 1/2, and a crop of the padded image."""

    flip: bool = False
    crop: bool = False
    pad_px: int = 4


UNCHANGED = Augment()


class Preparation:
    """Preparation of uint8 images as a model's input on one device: augmented, normalised, scaled.

    `mean` and `std` are per channel in units of 0..255. A `std` under 1 counts as 1, so that a constant channel stays
    finite. Cropping pads with black (0), as torchvision's RandomCrop does. `image_px` is the side to which the
    normalised image is scaled up, bilinearly (align_corners=False). A generator on the device, seeded with `seed`,
    draws the random numbers, so the numbers differ between kinds of device.

    Raise UserError for an unknown memory format.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        mean: Levels,
        std: Levels,
        seed: int = 0,
        augment: Augment = UNCHANGED,
        image_px: int | None = None,
        memory_format: MemoryFormat = "contiguous",
    ) -> None:
        one_of("memory format", memory_format, get_args(MemoryFormat))
        self.device, self.mean, self.std, self.seed = device, mean, std, seed
        self.augment, self.image_px, self.memory_format = augment, image_px, memory_format
        self._mean = torch.tensor(mean, device=device).view(1, 3, 1, 1)
        self._std = torch.tensor(std, device=device).clamp_min(1.0).view(1, 3, 1, 1)
        self.generator = torch.Generator(device=device)  # a CUDA graph that captures a preparation must register it
        self.rewind()

    def rewind(self) -> None:
        """Restart the random numbers, so that the next batch draws those of the first batch."""
        self.generator.manual_seed(self.seed)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return float32 (B, 3, image_px or H, image_px or W) made from uint8 (B, 3, H, W). `images` do not change."""
        on_host = images.device.type == "cpu"
        ready = (self._on_host if on_host else self._on_device)(images, self._draw(len(images), images.device))
        if self.image_px is not None and self.image_px != ready.shape[-1]:
            size = (self.image_px, self.image_px)
            ready = functional.interpolate(ready, size=size, mode="bilinear", align_corners=False)
        return ready

    def _draw(self, batch: int, device: torch.device) -> Moves:
        """Return the images to flip, bool (B, 1), and the crop origins (x, y) from 0 on, int64 (2, B, 1); else None."""
        flipped = shift = None
        if self.augment.flip:
            flipped = torch.rand(batch, 1, device=device, generator=self.generator) < 0.5
        if self.augment.crop:
            shifts = 2 * self.augment.pad_px + 1
            shift = torch.randint(0, shifts, (2, batch, 1), device=device, generator=self.generator)
        return flipped, shift

    def _on_device(self, images: torch.Tensor, moves: Moves) -> torch.Tensor:
        """Flip, crop and normalise with torch's operators. One gather, fast on a GPU, does flip and crop."""
        flipped, shift = moves
        batch, channels, height, width = images.shape
        device = images.device
        x = torch.arange(width, device=device).expand(batch, width)
        y = torch.arange(height, device=device).expand(batch, height)
        if flipped is not None:
            x = torch.where(flipped, width - 1 - x, x)
        if shift is not None:
            pad = self.augment.pad_px
            images = functional.pad(images, (pad, pad, pad, pad))
            x, y = x + shift[0], y + shift[1]
        if flipped is not None or shift is not None:
            sample = torch.arange(batch, device=device)[:, None, None, None]
            channel = torch.arange(channels, device=device)[:, None, None]
            images = images[sample, channel, y[:, None, :, None], x[:, None, None, :]]
        ready = images.to(torch.float32, memory_format=TORCH_FORMATS[self.memory_format])
        return ready.sub_(self._mean).div_(self._std)

    def _on_host(self, images: torch.Tensor, moves: Moves) -> torch.Tensor:
        """Flip, crop and normalise on a CPU: NumPy moves bytes without an index per byte, torch converts to float."""
        flipped, shift = moves
        pixels = images.numpy()
        if shift is not None:
            pixels = _crop(pixels, shift[:, :, 0].numpy(), self.augment.pad_px)
        if flipped is not None:
            chosen = np.flatnonzero(flipped.numpy())
            mirrored = pixels[chosen][..., ::-1]
            if shift is None:
                pixels = pixels.copy()  # without a crop, `pixels` is still the caller's array
            pixels[chosen] = mirrored
        mean, std = self._mean, self._std
        if self.memory_format == "channels_last":
            pixels = _interleave(pixels)
            # Expanded to a whole image, because torch's inner loop would otherwise cover only a pixel's channels.
            one_image = (1, *pixels.shape[1:])
            mean, std = (m.expand(one_image).contiguous(memory_format=torch.channels_last) for m in (mean, std))
        ready = torch.empty(pixels.shape, device="cpu", memory_format=TORCH_FORMATS[self.memory_format])
        at_once = max(1, _ONE_THREAD // pixels[0].size)
        for part, levels in zip(ready.split(at_once), torch.from_numpy(pixels).split(at_once), strict=True):
            part.copy_(levels).sub_(mean).div_(std)
        return ready


def _crop(images: Images, shift: NDArray[np.int64], pad_px: int) -> Images:
    """Return, of each image padded with black, the window of the original size at its `shift`, (2, B): x, y."""
    batch, channels, height, width = images.shape
    padded = np.zeros((batch, channels, height + 2 * pad_px, width + 2 * pad_px), dtype=np.uint8)
    padded[:, :, pad_px : pad_px + height, pad_px : pad_px + width] = images
    windows = sliding_window_view(padded, (height, width), axis=(2, 3))  # a view: (B, 3, y, x, H, W)
    cropped: Images = windows[np.arange(batch), :, shift[1], shift[0]]
    return cropped


def _interleave(images: Images) -> Images:
    """Return a copy (B, 3, H, W) with the channels of a pixel side by side in memory."""
    batch, channels, height, width = images.shape
    pixels = np.empty((batch, height, width, channels), dtype=np.uint8)
    for channel in range(channels):  # one channel at a time, so that NumPy's inner loop is a row of the image
        pixels[..., channel] = images[:, channel]
    return pixels.transpose(0, 3, 1, 2)
