"""`synthetic32`: a procedural stand-in for ImageNet32 with 1,000 classes that a network can learn, made in seconds.

A class is a smooth colour pattern: a few low-frequency waves with directions, phases and colours of the class.
An image is the pattern of its class with a random shift, contrast and brightness, and with pixel noise:

    image = 128 + brightness + contrast * shifted(pattern[class]) + noise,   clipped to 0..255

Image i depends on (seed, split, i) alone: i determines the counters of its random numbers (`random_bits`), and all
arithmetic is on integers. Every machine therefore makes the same bytes.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import IMAGE_SHAPE, SPLITS, Chunks, Images, Labels, Source, SplitName
from labkit.data.random_bits import below, check_seed, from_chunks, random_words

SYNTHETIC_VERSION = 1  # part of the cache token: raise it with any change to the images below
CLASSES = 1000

# Difficulty: a simple network of four 3x3 convolutions (32 to 256 channels) trains on 50,000 images and classifies
# 4,000 validation images. Its accuracy is 15 % after one epoch, 57 % after two and 80 % after six (chance is 0.1 %).
# Intensities are in grey levels of 0..255; *_Q are in 128ths.
WAVES = 4  # waves in a class's pattern
MAX_FREQUENCY = 3  # periods over the 32 pixels, each direction
WAVE_AMPLITUDE = 32  # largest amplitude of one wave in one channel
PATTERN_LIMIT = 90  # patterns are clipped to +- this
MAX_SHIFT = 8  # pixels, each direction, circular
CONTRAST_Q = (16, 112)  # contrast from 0.125 up to, not including, 0.875
BRIGHTNESS = 32  # +- grey levels
NOISE_Q = 80  # uniform noise of +- 80 grey levels (standard deviation 46)

_CHUNK = 128  # images drawn at once; fixed, because the chunk size decides which random numbers an image gets
_PIXELS = math.prod(IMAGE_SHAPE)
_SIDE = IMAGE_SHAPE[-1]
_STREAM = {"train": 0, "val": 1, "classes": 2}
_PHASES = 64
_SINE = np.array([round(128 * math.sin(2 * math.pi * k / _PHASES)) for k in range(_PHASES)], dtype=np.int32)


def _random_words(seed: int, stream: str, part: int, chunk: int, count: int) -> NDArray[np.uint64]:
    return random_words(seed, SYNTHETIC_VERSION, stream=_STREAM[stream], part=part, chunk=chunk, count=count)


@functools.lru_cache(maxsize=2)
def _patterns(seed: int) -> NDArray[np.int8]:
    """Return the patterns of all classes, int8 (CLASSES, 3, 48, 48): 32x32 plus a circular margin of MAX_SHIFT."""
    words = _random_words(seed, "classes", 0, 0, CLASSES * WAVES * 2).reshape(CLASSES, WAVES, 2)
    place, colour = words[..., 0], words[..., 1]
    span = 2 * MAX_FREQUENCY + 1
    # One draw among the span**2 - 1 pairs of frequencies. The pair (0, 0) is left out, because its wave is flat.
    pair = below(place, span * span - 1)
    pair += pair >= (span * span) // 2
    frequency_x, frequency_y = pair % span - MAX_FREQUENCY, pair // span - MAX_FREQUENCY
    phase = below(place, _PHASES, shift=16)
    amplitude = np.stack([below(colour, 2 * WAVE_AMPLITUDE + 1, shift=16 * c) - WAVE_AMPLITUDE for c in range(3)], -1)

    axis = np.arange(-MAX_SHIFT, _SIDE + MAX_SHIFT)
    steps = _PHASES // _SIDE
    pattern = np.zeros((CLASSES, 3, axis.size, axis.size), dtype=np.int32)
    for wave in range(WAVES):
        angle = steps * (frequency_x[:, wave, None, None] * axis + frequency_y[:, wave, None, None] * axis[:, None])
        sine = _SINE[(angle + phase[:, wave, None, None]) % _PHASES]
        pattern += amplitude[:, wave, :, None, None].astype(np.int32) * sine[:, None]
    pattern >>= 7
    return pattern.clip(-PATTERN_LIMIT, PATTERN_LIMIT).astype(np.int8)


def _chunk(seed: int, split: SplitName, chunk: int) -> tuple[Images, Labels]:
    """Return the `_CHUNK` images and labels of one chunk."""
    words = _random_words(seed, split, 0, chunk, 2 * _CHUNK).reshape(_CHUNK, 2)
    labels = below(words[:, 0], CLASSES, width=32)  # 16 bits would favour some classes by 1.5 %
    shift_x = below(words[:, 0], 2 * MAX_SHIFT + 1, shift=32)
    shift_y = below(words[:, 0], 2 * MAX_SHIFT + 1, shift=48)
    contrast = below(words[:, 1], CONTRAST_Q[1] - CONTRAST_Q[0]) + CONTRAST_Q[0]
    level = 128 + below(words[:, 1], 2 * BRIGHTNESS + 1, shift=16) - BRIGHTNESS

    windows = np.lib.stride_tricks.sliding_window_view(_patterns(seed), (_SIDE, _SIDE), axis=(2, 3))
    # int16 holds every intermediate value: 90 * 111 + 128 * 80 < 2**15. The level is added after the shift by 7 bits.
    pixels = windows[labels, :, shift_y, shift_x].astype(np.int16)
    pixels *= contrast.astype(np.int16)[:, None, None, None]
    noise = _random_words(seed, split, 1, chunk, _CHUNK * _PIXELS // 8).view(np.int8).reshape(pixels.shape)
    pixels += noise * np.int16(NOISE_Q)
    pixels >>= 7
    pixels += level.astype(np.int16)[:, None, None, None]
    return np.clip(pixels, 0, 255, out=pixels).astype(np.uint8), labels.astype(np.int16)


def generate(seed: int, split: SplitName, start: int, stop: int) -> tuple[Images, Labels]:
    """Return images `start` .. `stop` - 1 of a split, uint8 (n, 3, 32, 32), and their labels int16 (n,), 0..999.

    Raise UserError for a seed outside 0 .. 2**64 - 1.
    """
    check_seed("synthetic32", seed)
    return from_chunks(lambda chunk: _chunk(seed, split, chunk), size=_CHUNK, start=start, stop=stop)


def source(*, train_images: int, val_images: int, seed: int) -> Source:
    """Return the cache's source of the set."""
    counts = dict(zip(SPLITS, (train_images, val_images), strict=True))

    def chunks(split: SplitName) -> Chunks:
        step = 64 * _CHUNK
        for start in range(0, counts[split], step):
            yield generate(seed, split, start, min(start + step, counts[split]))

    def describe(train: int, val: int) -> str:
        return (
            f"synthetic32 (version {SYNTHETIC_VERSION}, seed {seed}): {train:,} training and {val:,} validation images "
            f"of {CLASSES:,} procedural classes; accuracies on it are not ImageNet accuracies."
        )

    token = f"v{SYNTHETIC_VERSION}-s{seed}-{train_images}-{val_images}"
    return Source("synthetic32", token, CLASSES, chunks, describe)
