"""Random numbers that a place determines: read from Philox, a counter-based generator (Salmon et al., SC'11).

Only the generator's raw stream is used, the part of NumPy's random module that is stable by policy (NEP 19), and only
arithmetic on integers: every machine draws the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def random_words(seed: int, version: int, *, stream: int, part: int, chunk: int, count: int) -> NDArray[np.uint64]:
    """`count` random 64-bit words of one chunk; distinct (stream, part, chunk) never share a counter."""
    key = np.array([seed, version], dtype=np.uint64)
    counter = np.array([0, part, stream, chunk], dtype=np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return np.asarray(words, dtype="<u8")  # in this order of bytes, as some become noise one by one


def below(words: NDArray[np.uint64], bound: int, *, shift: int = 0, width: int = 16) -> NDArray[np.int64]:
    """Map `width` bits of each word, taken from bit `shift` on, to 0 .. bound - 1; they must fit into 64 together."""
    bits = (words >> np.uint64(shift)) & np.uint64(2**width - 1)
    return ((bits * np.uint64(bound)) >> np.uint64(width)).astype(np.int64)
