"""The types of a data set: two splits of samples as memory-mapped arrays, and the source of the samples.

Samples are square colour images, or documents as bags of words with one bit per word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Images: TypeAlias = NDArray[np.uint8]  # (N, 3, edge, edge), channels R, G, B; documents: (N, words / 8), see `Split`
Labels: TypeAlias = NDArray[np.signedinteger[Any]]  # (N,), 0 .. classes - 1
SplitName: TypeAlias = Literal["train", "val"]
Chunks: TypeAlias = Iterator[tuple[Images, Labels]]
Levels: TypeAlias = tuple[float, float, float]  # of R, G, B, in units of 0..255

SPLITS: tuple[SplitName, SplitName] = ("train", "val")
EDGE_PX = 32  # edge of the images of every set except ImageNet at full size
IMAGE_SHAPE = (3, EDGE_PX, EDGE_PX)
ILSVRC2012 = "ilsvrc2012"  # ImageNet's validation images at full size


@dataclass(frozen=True)
class Split:
    """One split: `images` uint8 (N, 3, edge, edge) and `labels` int16 (N,), both read-only memory maps.

    For documents, `images` is uint8 (N, words / 8): one bit per word, the lowest bit of a byte first.
    """

    images: Images
    labels: Labels

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True)
class DataSet:
    """A data set that is ready to be loaded.

    `mean` and `std` are per channel (R, G, B), in units of 0..255. They come from the training images, unless the
    source gives the values that its networks expect. `checksum` identifies the images and labels of both splits,
    independent of the file format they were read from. `description` is one sentence for the reader. `words` is the
    size of the documents' vocabulary, 0 for images. The bits of documents are not normalised (mean 0, std 1).
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
        """Edge of every image in pixels."""
        assert not self.words, "documents have no edge"
        return int(self.train.images.shape[-1])

    @property
    def validation_only(self) -> bool:
        """Whether the set is for scoring trained networks only. Its `train` split then serves for calibration."""
        return self.name == ILSVRC2012


@dataclass(frozen=True)
class Source:
    """Source of a data set: the information from which the cache writes its entry, or finds an entry written before.

    `token` changes whenever the samples that `chunks(split)` yields would change. `describe(train_images, val_images)`
    is called after reading, since an archive's size is known only then. `normalisation` is the mean and std that
    networks on this data expect. None takes the mean and std of the training images.
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
    """Return the shape of one sample's bytes: of a document if `words` is not 0, else of an image."""
    return (-(-words // 8),) if words else (3, edge_px, edge_px)
