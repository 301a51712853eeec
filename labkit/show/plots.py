"""Functions for figures: `lines`, `series` (continuous axes), `dots`, `stack` (rows), `images`.

Each returns a `Figure`. All but `images` take a DataFrame: one row per configuration, host and pass, or the output of
`estimate`, `ratio` or `difference` (columns `value`, `low`, `high`). Tables hold SI values; drawings use display units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.show.draw import nothing, panels
from labkit.show.figure import WIDTH_IN, Figure, styled
from labkit.show.rows import dots, stack
from labkit.show.sweeps import lines, series

_MOST_COLUMNS = 8  # of a grid of images


def images(
    arrays: Sequence[Any],
    titles: Sequence[str] = (),
    *,
    title: str = "",
    caption: str = "",
    name: str = "images",
) -> Figure:
    """Draw a grid of small images: (height, width), (height, width, 3) or (3, height, width); integers are 0 to 255.

    >>> images([np.zeros((3, 8, 8), dtype=np.uint8)], ["before"]).data["width"].tolist()
    [8]
    """
    pictures = [_picture(array) for array in arrays]
    shapes = [{"height": picture.shape[0], "width": picture.shape[1]} for picture in pictures]
    names = [titles[place] if place < len(titles) else "" for place in range(len(pictures))]
    data = pd.DataFrame([{"image": text} | shape for text, shape in zip(names, shapes, strict=True)])
    alt = f"{title or 'Images'}: {', '.join(dict.fromkeys(filter(None, names))) or len(pictures)}"
    with styled():
        if not pictures:
            return Figure(nothing(None, "no images were generated"), name, alt, data, title, caption)
        columns = min(_MOST_COLUMNS, len(pictures))
        height_in = (WIDTH_IN / columns + (0.2 if any(names) else 0.03)) * -(-len(pictures) // columns)
        drawing, grid = panels(None, len(pictures), columns=columns, height_in=height_in, share="")
        for axes, picture, text in zip(grid, pictures, names, strict=True):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_title(text)
            axes.set_axis_off()
    return Figure(drawing, name, alt, data, title, caption)


def _picture(array: Any) -> Any:
    """Return an image with values from 0 to 1. Floats outside this range are rescaled to it."""
    pixels = np.asarray(array)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[-1] not in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    if np.issubdtype(pixels.dtype, np.integer):
        return pixels / 255.0
    low, high = (float(end) for end in (np.nanmin(pixels), np.nanmax(pixels)))
    return pixels if low >= 0 and high <= 1 else (pixels - low) / ((high - low) or 1.0)


__all__ = ["dots", "images", "lines", "series", "stack"]
