"""`reuters_shaped`: documents drawn at random in the shape of Keras's Reuters newswires, which a network can learn.

8,982 training and 2,246 validation documents of 46 classes over 10,000 words. A class is as frequent as its number in
the newswires' training part; lengths have the newswires' mean of 146 words and are as skewed. A word is drawn by Zipf's
law (the k-th most frequent 1/k as often as the first): mostly from an order that all classes share, else from an order
of the class's own. Kept is which words a document has, as Keras's example does.

Document i is a function of (seed, split, i) alone, the same on every machine (`draws`).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from labkit.data.bag_of_words import AS_IT_IS, CLASSES, WORDS, pack
from labkit.data.dataset import SPLITS, Chunks, Images, Labels, Source, SplitName
from labkit.data.draws import below, check_seed, from_chunks, random_words

NAME = "reuters_shaped"
VERSION = 1  # raise it with any change to what follows: it is part of the cache token
TRAIN_DOCUMENTS = 8_982
VAL_DOCUMENTS = 2_246

# Documents of each class in the training part of Keras's reuters (load_data() with its defaults), as its users print
# them: np.unique(y_train, return_counts=True). Together they are the 8,982.
PER_CLASS = (
    *(55, 432, 74, 3159, 1949, 17, 48, 16, 139, 101, 124, 390, 49, 172, 26, 20, 444, 39, 66, 549, 269, 100, 15),
    *(41, 62, 92, 24, 15, 48, 19, 45, 39, 32, 11, 50, 10, 49, 19, 19, 24, 36, 30, 13, 21, 12, 18),
)
# Words of a document: the shortest, and the longest that can be drawn; the product of two even draws lies between, so
# that a quarter of the range is the mean: 145.5 words.
SHORTEST, LONGEST = 20, 522
# Of 64 words so many are drawn from the class's own order. With 8 of them the 512-unit network gets 62 % of the
# validation documents right after one epoch (batches of 64, learning rate 0.01) and 80 % after five; always naming the
# most frequent class would get 35 %. Of the newswires such networks get some 79 %.
OWN_Q = 8

_CHUNK = 128  # documents drawn at once; fixed, as it decides which random numbers a document gets
_STREAM = {"train": 16, "val": 17, "classes": 18}


@functools.cache
def _zipf() -> NDArray[np.int64]:
    """Cumulated weights of the ranks 0 .. WORDS - 1, in whole numbers, the first 2**24."""
    return np.cumsum(2**24 // np.arange(1, WORDS + 1, dtype=np.int64))


@functools.lru_cache(maxsize=2)
def _own_orders(seed: int) -> NDArray[np.int16]:
    """Each class's own order of the words, int16 (CLASSES, WORDS)."""
    draws = random_words(seed, VERSION, stream=_STREAM["classes"], part=0, chunk=0, count=CLASSES * WORDS)
    return np.argsort(draws.reshape(CLASSES, WORDS), axis=1, kind="stable").astype(np.int16)


def _chunk(seed: int, split: SplitName, chunk: int) -> tuple[Images, Labels]:
    """The `_CHUNK` documents and labels of one chunk."""
    drawn = random_words(
        seed, VERSION, stream=_STREAM[split], part=0, chunk=chunk, count=_CHUNK * (1 + LONGEST)
    ).reshape(_CHUNK, 1 + LONGEST)
    about, words = drawn[:, 0], drawn[:, 1:]
    labels = np.searchsorted(np.cumsum(PER_CLASS), below(about, sum(PER_CLASS), width=32), side="right")
    span = LONGEST - SHORTEST + 1
    lengths = SHORTEST + ((below(about, 2**16, shift=32) * below(about, 2**16, shift=48) * span) >> 32)
    ranks = np.searchsorted(_zipf(), below(words, int(_zipf()[-1]), width=32), side="right")
    is_own = below(words, 64, shift=32) < OWN_Q
    chosen = np.where(is_own, _own_orders(seed)[labels[:, None], ranks], ranks)
    documents, places = np.nonzero(np.arange(LONGEST) < lengths[:, None])
    return pack(documents, chosen[documents, places], _CHUNK), labels.astype(np.int16)


def generate(seed: int, split: SplitName, start: int, stop: int) -> tuple[Images, Labels]:
    """Documents `start` .. `stop` - 1 of a split: bits uint8 (n, 1250) and labels int16 (n,), 0..45.

    Raises UserError for a seed outside 0 .. 2**64 - 1 or a range that is negative or reversed.
    """
    check_seed(NAME, seed)
    return from_chunks(lambda chunk: _chunk(seed, split, chunk), size=_CHUNK, start=start, stop=stop)


def source(*, train_documents: int, val_documents: int, seed: int) -> Source:
    """The set as something the cache can write."""
    counts = dict(zip(SPLITS, (train_documents, val_documents), strict=True))

    def chunks(split: SplitName) -> Chunks:
        yield generate(seed, split, 0, counts[split])

    def describe(train: int, val: int) -> str:
        return (
            f"{NAME} (version {VERSION}, seed {seed}): {train:,} training and {val:,} validation documents of "
            f"{CLASSES} classes over {WORDS:,} words, drawn at random in the shape of the Reuters newswires; "
            "accuracies on it are not of Reuters."
        )

    token = f"v{VERSION}-s{seed}-{train_documents}-{val_documents}"
    return Source(NAME, token, CLASSES, chunks, describe, normalisation=AS_IT_IS, words=WORDS)
