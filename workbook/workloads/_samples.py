"""Generated images as PNG grids, from the same noise before and after training, and a grid of real images."""

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
COLOURS = 16  # half a byte per pixel, because images of an untrained generator hardly compress
Make = Callable[[torch.Tensor], torch.Tensor]


class Samples:
    """The first `count` real images of a split, and images generated from fixed noise. Grids are base64 PNG text."""

    def __init__(self, real: Split, count: int, *, seed: int) -> None:
        self._noise = torch.randn(count, NOISE, 1, 1, generator=torch.Generator().manual_seed(seed))
        self._real = np.array(real.images[:count])

    def beginning(self, make: Make) -> dict[str, str]:
        """Return the grids that need no training: of the untrained generator and of real images, by fact name."""
        return {"samples_before_png": self.of(make), "samples_real_png": png(self._real)}

    def of(self, make: Make) -> str:
        """Return the grid of images generated from the noise. `make` returns (N, 3, E, E) in -1..1 on the host."""
        levels = ((make(self._noise) + 1) * 127.5).round().clamp(0, 255)
        return png(levels.to(torch.uint8).numpy())


def png(images: NDArray[np.uint8]) -> str:
    """Return images (N, 3, E, E) as one grid of 8 columns and 16 adapted colours, in base64 PNG text."""
    from PIL import Image  # imported here, because most trials draw nothing

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
    """Restore the network's running statistics when the block ends."""
    kept = [buffer.clone() for buffer in network.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(network.buffers(), kept, strict=True):
            buffer.copy_(value)
