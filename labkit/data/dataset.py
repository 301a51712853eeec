"""What a data set is in labkit: two splits of 32x32 colour images as memory-mapped arrays, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Images: TypeAlias = NDArray[np.uint8]  # (N, 3, 32, 32), channels R, G, B
Labels: TypeAlias = NDArray[np.signedinteger[Any]]  # (N,), 0 .. classes - 1
SplitName: TypeAlias = Literal["train", "val"]
Chunks: TypeAlias = Iterator[tuple[Images, Labels]]

SPLITS: tuple[SplitName, SplitName] = ("train", "val")
IMAGE_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Split:
    """One split: `images` uint8 (N, 3, 32, 32) and `labels` int16 (N,), both read-only memory maps."""

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class DataSet:
    """A data set that is ready to be loaded.

    `mean` and `std` are per channel (R, G, B) over the training images, in units of 0..255. `checksum` identifies the
    images and labels of both splits, whatever form they were read from. `description` is one sentence for the reader.
    """

    name: str
    classes: int
    train: Split
    val: Split
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    checksum: str
    description: str


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: what the cache needs in order to write an entry, or to find the one written before.

    `token` changes whenever what `chunks(split)` yields would change. `describe(train_images, val_images)` is asked
    after reading, since an archive's size is known only then.
    """

    name: str
    token: str
    form: str
    classes: int
    chunks: Callable[[SplitName], Chunks]
    describe: Callable[[int, int], str]
