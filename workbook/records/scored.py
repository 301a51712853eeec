"""Correct answers of a network, image by image, as a record holds them.

Two networks that saw the same images can then be compared by the images on which they differ. That says far more than
the difference of two accuracies.
"""

from __future__ import annotations

import base64
import zlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, model_validator


def packed(content: bytes) -> str:
    """Return bytes as compressed text in base64."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


LARGEST_BYTES = 2**26  # of an unpacked value: eight million integers


def unpacked(text: str) -> bytes:
    """Return the bytes of a text. Raise ValueError for a text that `packed` did not make, and for a longer value."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(base64.b64decode(text, validate=True), LARGEST_BYTES)
    except zlib.error as error:
        raise ValueError(f"packed bits that cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise ValueError(f"packed bits that are cut off, or more than {LARGEST_BYTES:,} bytes")
    return content


Hits = NDArray[np.bool_]
Accuracy = Literal["top1", "top5"]


def pack(hits: Hits) -> str:
    """Return one bit per image, the first in the highest bit of the first byte, as compressed text in base64."""
    return packed(np.packbits(hits).tobytes())


def unpack(bits: str, images: int) -> Hits:
    """Return the hits of `images` images. Raise ValueError if the text does not hold as many."""
    content = np.frombuffer(unpacked(bits), dtype=np.uint8)
    if len(content) != -(-images // 8):
        raise ValueError(f"packed bits of {8 * len(content)} images at most, not of {images}")
    return np.unpackbits(content, count=images).astype(np.bool_)


class Scored(BaseModel, extra="forbid", frozen=True):
    """Validation images in their order, and whether the right class was the first, or among the first five.

    `weights_sha256` and `images_sha256` (of images and labels) identify what was scored: only records with equal hashes
    are compared image by image. The counts beside the packed bits are for readers of the file.
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
        """Return a `Scored` from the hits of each image. Both arrays are of the same images."""
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
                raise ValueError(f"the bits of {name} do not match the recorded count")
        return self

    def hits(self, accuracy: Accuracy) -> Hits:
        """Return whether each image was answered correctly."""
        return unpack(self.top1_bits if accuracy == "top1" else self.top5_bits, self.images)

    def share(self, accuracy: Accuracy) -> float:
        """Return the accuracy as a fraction of 1."""
        return (self.top1_count if accuracy == "top1" else self.top5_count) / self.images
