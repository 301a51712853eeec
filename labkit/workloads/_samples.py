"""Images that a generator makes, as one PNG: the same noise before and after training, beside real images."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labkit.data.dataset import Split
from labkit.models.wgan import NOISE

COLUMNS = 8
GAP_PX = 2  # between images, white
COLOURS = 16  # half a byte a pixel: what an untrained generator makes can't be packed
Make = Callable[[torch.Tensor], torch.Tensor]


class Samples:
    """So many images: real ones as the data set has them first, generated ones from noise that stays the same.

    Grids are PNG as base64 text.
    """

    def __init__(self, real: Split, count: int, *, seed: int) -> None:
        self._noise = torch.randn(count, NOISE, 1, 1, generator=torch.Generator().manual_seed(seed))
        self._real = np.array(real.images[:count])

    def beginning(self, make: Make) -> dict[str, str]:
        """The grids that do not wait for training: of the untrained generator, and of real images."""
        return {"samples_before_png": self.of(make), "samples_real_png": png(self._real)}

    def of(self, make: Make) -> str:
        """What a generator makes of the noise; `make` gives images (N, 3, E, E) in -1..1 on the host."""
        levels = ((make(self._noise) + 1) * 127.5).round().clamp(0, 255)
        return png(levels.to(torch.uint8).numpy())


def png(images: NDArray[np.uint8]) -> str:
    """Images (N, 3, E, E) as one grid of eight columns, in the sixteen colours that fit them best."""
    from PIL import Image  # not every trial draws

    count, channels, height, width = images.shape
    rows, columns = -(-count // COLUMNS), min(count, COLUMNS)
    grid = np.full((rows * (height + GAP_PX) - GAP_PX, columns * (width + GAP_PX) - GAP_PX, channels), 255, np.uint8)
    for place, image in enumerate(images):
        top, left = place // COLUMNS * (height + GAP_PX), place % COLUMNS * (width + GAP_PX)
        grid[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(grid).quantize(COLOURS).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


@contextmanager
def without_new_statistics(network: nn.Module) -> Iterator[None]:
    """Whatever the network sees meanwhile, its running statistics stay as they are."""
    kept = [buffer.clone() for buffer in network.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(network.buffers(), kept, strict=True):
            buffer.copy_(value)
