"""What Grain's workers run: read a file, decode it with Pillow, crop and resize in one call.

Grain starts its workers as new interpreters that import this module. So it does not import torch, which takes seconds.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from grain import python as pygrain
from PIL import Image

if TYPE_CHECKING:
    from labkit.data.readers.reader import Wanted

UNREADABLE = (OSError, SyntaxError, ValueError)  # what Pillow raises for a file that is damaged or no image


class Files:
    """The bytes of the files and their labels; None for a file that cannot be read."""

    def __init__(self, wanted: Wanted) -> None:
        self._folder = str(wanted.stored.folder)
        # Plain tuples: workers need not import the module of the samples' own type.
        self._samples = [(sample.path, sample.label) for sample in wanted.stored.samples]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> tuple[bytes | None, int]:
        name, label = self._samples[index]
        try:
            with open(f"{self._folder}/{name}", "rb") as file:  # noqa: PTH123 - a Path per file would cost time
                return file.read(), label
        except OSError:
            return None, label

    def __repr__(self) -> str:
        return f"Files({self._folder})"  # Grain writes it into the state of each batch


class Decode(pygrain.RandomMapTransform):  # type: ignore[misc, unused-ignore]
    """Decode, crop, resize and flip. An unreadable sample becomes a black image, marked as not `read`."""

    def __init__(self, wanted: Wanted) -> None:
        self._px, self._train = wanted.image_px, wanted.train

    def random_map(self, element: tuple[bytes | None, int], rng: np.random.Generator) -> dict[str, Any]:
        """Return the image, uint8 (3, px, px), the label, and whether the image could be read."""
        data, label = element
        read, image = True, np.zeros((3, self._px, self._px), dtype=np.uint8)
        try:
            if data is None:
                raise OSError("the file cannot be read")
            image = self._prepared(Image.open(io.BytesIO(data)).convert("RGB"), rng)
        except UNREADABLE:
            read = False
        return {"image": image, "label": np.int64(label), "read": np.bool_(read)}

    def _prepared(self, image: Image.Image, rng: np.random.Generator) -> Any:
        size = (self._px, self._px)
        if self._train:
            box = random_box(*image.size, rng)
            image = image.resize(size, Image.Resampling.BILINEAR, box=box)
            if rng.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            scaled = [edge * (self._px * 256 // 224) // min(image.size) for edge in image.size]
            left, top = (round((edge - self._px) / 2) for edge in scaled)
            image = image.resize(scaled, Image.Resampling.BILINEAR)
            image = image.crop((left, top, left + self._px, top + self._px))
        return np.asarray(image).transpose(2, 0, 1)


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Return a random crop as left, top, right, bottom: 8 to 100 % of the area, aspect ratio 3/4 to 4/3.

    It is drawn as torchvision's RandomResizedCrop draws it. After ten draws that do not fit, it is the whole image.
    """
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
            return left, top, left + w, top + h
    return 0, 0, width, height
