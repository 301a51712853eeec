"""Random numbers addressed by a counter, from the counter-based generator Philox (Salmon et al., SC'11).

Only the generator's raw stream is used, the part of NumPy's random module that is stable by policy (NEP 19). All
arithmetic is on integers. Every machine therefore draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import Images, Labels
from labkit.errors import UserError


def check_seed(name: str, seed: int) -> None:
    """Raise UserError for a seed that is not a valid key of Philox."""
    if not 0 <= seed < 2**64:
        raise UserError(f"the seed of {name} is {seed}; it must be from 0 to 2**64 - 1.")


def permutation(count: int, *, key: tuple[int, int]) -> NDArray[np.int64]:
    """Return a permutation of 0 .. count - 1, int64 (count,), which `key` determines."""
    draws = np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(count)
    return np.argsort(draws, kind="stable")


def random_words(seed: int, version: int, *, stream: int, part: int, chunk: int, count: int) -> NDArray[np.uint64]:
    """Return `count` random 64-bit words of one chunk. Distinct (stream, part, chunk) never share a counter."""
    key = np.array([seed, version], dtype=np.uint64)
    counter = np.array([0, part, stream, chunk], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.asarray(words, dtype="<u8")  # fixed byte order, because synthetic32 uses single bytes as noise


def below(words: NDArray[np.uint64], bound: int, *, shift: int = 0, width: int = 16) -> NDArray[np.int64]:
    """Map the `width` bits of each word from bit `shift` on to 0 .. bound - 1. `2**width * bound` must fit 64 bits."""
    bits = (words >> np.uint64(shift)) & np.uint64(2**width - 1)
    return ((bits * np.uint64(bound)) >> np.uint64(width)).astype(np.int64)


def from_chunks(
    draw: Callable[[int], tuple[Images, Labels]], *, size: int, start: int, stop: int
) -> tuple[Images, Labels]:
    """Return samples `start` .. `stop` - 1 of a set that `draw` makes in chunks of `size` samples."""
    first = start // size
    chunks = [draw(chunk) for chunk in range(first, max(first + 1, -(-stop // size)))]
    here = slice(start - first * size, stop - first * size)
    images, labels = (np.concatenate(arrays)[here] for arrays in zip(*chunks, strict=True))
    return images, labels
