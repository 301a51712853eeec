"""Long values of a record as compressed text in base64."""

from __future__ import annotations

import base64
import zlib


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
