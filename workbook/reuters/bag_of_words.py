"""Documents as bags of words: one bit for each of 10,000 words, set if the document has the word; 1,250 bytes.

This is the input that Keras's examples make of the Reuters newswires: 46 topics, the 10,000 most frequent words.
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
    """Return bits uint8 (count, 1250), lowest bit first, in which document `documents[i]` has the word `words[i]`."""
    has = np.zeros((count, WORDS), dtype=np.bool_)
    has[documents, words] = True
    return np.packbits(has, axis=1, bitorder="little")
