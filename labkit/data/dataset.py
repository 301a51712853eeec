"""What a data set is in labkit: two splits of samples as memory-mapped arrays, and their origin.

Samples are square colour images, or documents as bags of words: which words each has, a bit a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Images: TypeAlias = NDArray[np.uint8]  # (N, 3, edge, edge), channels R, G, B; of documents (N, words / 8), see `Split`
Labels: TypeAlias = NDArray[np.signedinteger[Any]]  # (N,), 0 .. classes - 1
SplitName: TypeAlias = Literal["train", "val"]
Chunks: TypeAlias = Iterator[tuple[Images, Labels]]
Levels: TypeAlias = tuple[float, float, float]  # of R, G, B, in units of 0..255

SPLITS: tuple[SplitName, SplitName] = ("train", "val")
EDGE_PX = 32  # of every set but ImageNet's own images
IMAGE_SHAPE = (3, EDGE_PX, EDGE_PX)
ILSVRC2012 = "ilsvrc2012"  # ImageNet's validation images at full size, by the name that papers/*.yaml have for it


@dataclass(frozen=True)
class Split:
    """One split: `images` uint8 (N, 3, edge, edge) and `labels` int16 (N,), both read-only memory maps.

    Of documents `images` is uint8 (N, words / 8), a bit a word, the lowest bit of a byte first.
    """

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class DataSet:
    """A data set that is ready to be loaded.

    `mean` and `std` are per channel (R, G, B), in units of 0..255: over the training images, unless the source says
    which ones its networks expect. `checksum` identifies the images and labels of both splits, whatever form they were
    read from. `description` is one sentence for the reader. `words` is over how many words documents are counted, 0 of
    images; a bit is taken as it is (mean 0, std 1).
    """

    name: str
    classes: int
    train: Split
    val: Split
    mean: Levels
    std: Levels
    checksum: str
    description: str
    words: int = 0

    @property
    def edge_px(self) -> int:
        """The edge of every image."""
        assert not self.words, "documents have no edge"
        return int(self.train.images.shape[-1])

    @property
    def validation_only(self) -> bool:
        """Whether these are images to score, on which nothing is trained: its `train` split is for calibrating."""
        return self.name == ILSVRC2012


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: what the cache needs in order to write an entry, or to find the one written before.

    `token` changes whenever what `chunks(split)` yields would change. `describe(train_images, val_images)` is asked
    after reading, since an archive's size is known only then. `normalisation` is the mean and std that networks on
    this data expect; None takes those of the training images.
    """

    name: str
    token: str
    classes: int
    chunks: Callable[[SplitName], Chunks]
    describe: Callable[[int, int], str]
    edge_px: int = EDGE_PX
    normalisation: tuple[Levels, Levels] | None = None
    words: int = 0


def row_shape(*, edge_px: int, words: int) -> tuple[int, ...]:
    """The shape of one sample's bytes: an image's, or a document's where there are `words`."""
    return (-(-words // 8),) if words else (3, edge_px, edge_px)
