"""Documents as bags of words: for each of 10,000 words whether a document has it, a bit a word, 1,250 bytes together.

What the Reuters newswires are to the networks of Keras's examples: 46 topics, the 10,000 most frequent words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import Images, Levels

WORDS = 10_000
CLASSES = 46
AS_IT_IS: tuple[Levels, Levels] = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # mean and std that change nothing


def pack(documents: NDArray[np.signedinteger[Any]], words: NDArray[np.signedinteger[Any]], count: int) -> Images:
    """Bits uint8 (count, 1250), the lowest first: document `documents[i]` has the word `words[i]`, both (n,)."""
    has = np.zeros((count, WORDS), dtype=np.bool_)
    has[documents, words] = True
    return np.packbits(has, axis=1, bitorder="little")
