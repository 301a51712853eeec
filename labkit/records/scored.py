"""Which of the images that a network was asked were answered rightly, image by image, as it stands in a record.

Two networks that saw the same images can then be compared by the images on which they differ, which says far more than
the difference of two shares.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, model_validator

from labkit.records.packed import packed, unpacked

Hits = NDArray[np.bool_]
Accuracy = Literal["top1", "top5"]


def pack(hits: Hits) -> str:
    """A bit an image, the first in the highest bit of the first byte, compressed, in base64."""
    return packed(np.packbits(hits).tobytes())


def unpack(bits: str, images: int) -> Hits:
    """The hits of so many images; ValueError for a text that does not hold as many."""
    content = np.frombuffer(unpacked(bits), dtype=np.uint8)
    if len(content) != -(-images // 8):
        raise ValueError(f"packed bits of {8 * len(content)} images at most, not of {images}")
    return np.unpackbits(content, count=images).astype(np.bool_)


class Scored(BaseModel, extra="forbid", frozen=True):
    """Validation images in their order, and whether the right class was the first, or among the first five.

    `weights_sha256` and `images_sha256` (images and labels) say of what: only records in which both are the same are
    compared image by image. The counts stand beside the packed bits for readers of the file.
    """

    images: int
    top1_count: int
    top5_count: int
    top1_bits: str
    top5_bits: str
    weights_sha256: str
    images_sha256: str

    @classmethod
    def of(cls, top1: Hits, top5: Hits, *, weights_sha256: str, images_sha256: str) -> Scored:
        """From the hits of each image; both arrays are of the same images."""
        return cls(
            images=len(top1),
            top1_count=int(top1.sum()),
            top5_count=int(top5.sum()),
            top1_bits=pack(top1),
            top5_bits=pack(top5),
            weights_sha256=weights_sha256,
            images_sha256=images_sha256,
        )

    @model_validator(mode="after")
    def _is_whole(self) -> Scored:
        if self.images < 1:
            raise ValueError("no image was scored")
        for name, count in (("top1", self.top1_count), ("top5", self.top5_count)):
            if int(self.hits(name).sum()) != count:  # type: ignore[arg-type]
                raise ValueError(f"the bits of {name} are not those that were counted")
        return self

    def hits(self, accuracy: Accuracy) -> Hits:
        """Whether each image was answered rightly."""
        return unpack(self.top1_bits if accuracy == "top1" else self.top5_bits, self.images)

    def share(self, accuracy: Accuracy) -> float:
        """The accuracy, as a fraction of 1."""
        return (self.top1_count if accuracy == "top1" else self.top5_count) / self.images
