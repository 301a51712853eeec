"""Long values of a record as text: compressed, in base64."""

from __future__ import annotations

import base64
import zlib


def packed(content: bytes) -> str:
    """The text of some bytes."""
    return base64.b64encode(zlib.compress(content, 9)).decode()


def unpacked(text: str) -> bytes:
    """The bytes of a text; ValueError for a text that `packed` did not make."""
    try:
        return zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"packed bits that cannot be unpacked: {error}") from error
