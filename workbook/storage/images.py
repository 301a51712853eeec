"""Procedural photographs for a stored set: sizes, bytes and decoding costs like those of ImageNet's files.

A smooth ground and a few shapes give edges. Noise in octaves, whose amplitude falls with the frequency as in
photographs, gives texture. The amplitude is chosen so that a file has about 110 KB, the mean of ImageNet's training
files. Decoding then costs what it costs for a photograph, because it depends on the pixels and on the coded bytes.

Image i depends on (seed, i) alone, as in `synthetic`. A class has no look of its own: no network learns this set.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.data.random_bits import below, random_words

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # raise it with any change to the images
QUALITY = 90
MEAN_FILE_BYTES = 110_000
LONG_PX = (420, 580)  # range of the longer side; ImageNet's usual size is 500 x 375
SHORT_OF_LONG = (0.75, 0.75, 0.667, 0.8)
SHAPES = 7
OCTAVES_PX = (1, 2, 4, 8, 16)  # the size of a grain of noise
AMPLITUDE = (31, 35, 38, 42, 46)  # of each octave, in grey levels, times a factor of the image
DETAIL_Q = (56, 88)  # range of that factor in 64ths: some photographs have more texture than others

_STREAMS = {"layout": 0, "ground": 1, "grain": 2}


def label_of(index: int, classes: int) -> int:
    """Return the class of an image. Classes are equally frequent."""
    return index % classes


def draw(seed: int, index: int) -> Image:
    """Return image `index` of the set, in RGB."""
    from PIL import Image, ImageDraw  # not at the top: interpreters of other frameworks need not have Pillow

    layout = random_words(seed, VERSION, stream=_STREAMS["layout"], part=0, chunk=index, count=4 + 3 * SHAPES)
    long = LONG_PX[0] + int(below(layout[:1], LONG_PX[1] - LONG_PX[0])[0])
    short = round(long * SHORT_OF_LONG[int(layout[1]) % len(SHORT_OF_LONG)])
    size = (short, long) if layout[2] % 4 == 0 else (long, short)  # one image in four is upright
    factor = DETAIL_Q[0] + int(below(layout[3:4], DETAIL_Q[1] - DETAIL_Q[0])[0])

    ground = _noise(seed, "ground", index, (8, 6), channels=3)
    image = Image.fromarray(ground // 2 + 64).resize(size, Image.Resampling.BICUBIC)
    canvas = ImageDraw.Draw(image)
    for place, extent, colour in layout[4:].reshape(SHAPES, 3):
        left, top = (int(place) >> 16) % size[0], (int(place) >> 32) % size[1]
        box = (left, top, left + 20 + int(extent) % 140, top + 20 + (int(extent) >> 16) % 140)
        fill = tuple(40 + (int(colour) >> (8 * channel)) % 176 for channel in range(3))
        (canvas.ellipse if int(extent) >> 63 else canvas.rectangle)(box, fill=fill)

    texture = np.zeros((size[1], size[0]), np.int16)
    for octave, (grain, amplitude) in enumerate(zip(OCTAVES_PX, AMPLITUDE, strict=True)):
        coarse = (-(-size[0] // grain), -(-size[1] // grain))
        noise = Image.fromarray(_noise(seed, "grain", index, coarse, part=octave)[..., 0])
        values = np.asarray(noise if grain == 1 else noise.resize(size, Image.Resampling.BILINEAR), np.int16)
        texture += ((values - 128) * np.int16(amplitude * factor // 64)) >> 7
    return Image.fromarray(np.clip(np.asarray(image, np.int16) + texture[..., None], 0, 255).astype(np.uint8))


def jpeg(seed: int, index: int) -> bytes:
    """Return image `index` of the set as a JPEG file with 4:2:0 colour."""
    file = io.BytesIO()
    draw(seed, index).save(file, "JPEG", quality=QUALITY, subsampling="4:2:0")
    return file.getvalue()


def _noise(
    seed: int, stream: str, index: int, size: tuple[int, int], *, channels: int = 1, part: int = 0
) -> NDArray[np.uint8]:
    """Return uniform noise, uint8 (height, width, channels)."""
    count = size[0] * size[1] * channels
    words = random_words(seed, VERSION, stream=_STREAMS[stream], part=part, chunk=index, count=-(-count // 8))
    return words.view(np.uint8)[:count].reshape(size[1], size[0], channels)
