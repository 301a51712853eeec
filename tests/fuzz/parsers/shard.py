"""A shard on a server, whose images are counted: a tar archive, plain or packed. No server is asked."""

import io
import random
from unittest.mock import patch

from labkit.data.stored import remote
from tests.fuzz.check import documented
from tests.fuzz.mutate import of_bytes, packed

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    with patch.object(remote, "open_file", lambda *_: io.BytesIO(data)), documented():
        index = remote._counted("https://host", [("a.tar", len(data))], None)
        assert index.images >= 1 and 1 <= index.classes <= 2**31


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    return (packed(of_tar) if data.startswith(b"\x1f\x8b") else of_tar)(data, others, rng)


def of_tar(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Change a field of a header and mend its checksum, or repeat or change any bytes."""
    if rng.random() < 0.3:
        return of_bytes(data, others, rng)
    blocks = [bytearray(data[at : at + 512].ljust(512, b"\0")) for at in range(0, len(data), 512)] or [bytearray(512)]
    for _ in range(rng.choice((1, 1, 2, 40))):
        block = rng.choice([block for block in blocks if block[257:262] == b"ustar"] or blocks)
        start, stop, values = rng.choice(FIELDS)
        block[start:stop] = rng.choice(values).ljust(stop - start, b"\0")[: stop - start]
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:]))
        if rng.random() < 0.3:
            blocks.insert(rng.randrange(len(blocks)), bytearray(block))
    return b"".join(blocks)[:60_000]


# Places in a header, and values for them: name, size, kind, the name that a link has as its target.
FIELDS = (
    (0, 100, (b"../../x.jpg", b"/etc/x.cls", b"a.jpg", b"a.cls", b"\xff.cls", b"", b"a" * 100)),
    (
        124,
        136,
        (b"77777777777", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-1", b"0", b"2000", b"\x80" + b"\0" * 10 + b"\1"),
    ),
    (156, 157, tuple(bytes([kind]) for kind in b"0123456 7SxgLKXVD\0\xff")),
    (157, 257, (b"a.jpg", b"../../x", b"a.cls", b"none")),
    (386, 500, (b"", b"00000000000 77777777777 ", b"\1" * 100)),
)
