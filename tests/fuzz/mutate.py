"""Mutations of inputs: of their bytes, and of the values of JSON, which keep the syntax intact."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

LARGEST = 60_000  # bytes of an input

# Values that have broken some parser.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 10**30, -(2**63), 2**63, 2**31, 0.0, -0.0, 1e308, 5e-324, 1e-300, 0.5),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "0", "a" * 3000, "\x00", "\x1b[2J", "\u202eabc", "\ud800"),
    *("../../x", "/etc/passwd", "~nobody-here", "<script>alert(1)</script>", "</style>", "javascript:alert(1)"),
    *("%s%n", "{0}", "$(touch marker)", "fp32", "train", "h200", "2026-01-01", "NaN", [], {}, [[]], [None], {"": {}}),
    *([0] * 50, {"a": 1, "b": [1]}, ["x", 1], 10**400, "1" * 5000, [1, "1"], {"mean": 1}),
)
PIECES = (
    *(
        b"\x00",
        b"\xff",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x80",
        b"\xff" * 8,
        b"\x7f" + b"\xff" * 7,
    ),
    *(
        b"[" * 500,
        b"{" * 300,
        b'{"a":' * 300,
        b"(" * 200,
        b"9" * 5000,
        b"-",
        b"1e999",
        b"&a ",
        b"*a",
        b"<<: ",
        b"!!binary ",
    ),
    *(b"2001-99-99", b"\n", b"\r", b"\x1b]0;x\x07", b"\xe2\x80\xae", b"\xed\xa0\x80", b"PK\x05\x06", b"\x1f\x8b\x08"),
    *(
        b"cos\nsystem\n(S'touch marker'\ntR.",
        b"\x8e" + b"\xff" * 8,
        b"\x96\x00\x00\x00\x40" + b"\x00" * 4,
        b"\x8c\x01a",
    ),
    *(b"\x80\x05", b"2", b"(", b")", b"\x86", b"\x94", b"h\x00", b"R", b"b", b"a", b"e", b"u", b"s", b"."),
)


def of_bytes(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return `data` after a few changes of its bytes: set, cut, repeated, moved, or mixed with another input."""
    content = bytearray(data or b"\x00")
    for _ in range(1 << rng.randrange(4)):
        place, kind = rng.randrange(len(content) + 1), rng.randrange(8)
        length = 1 << rng.randrange(1 + min(10, len(content).bit_length()))
        if kind == 0 and place < len(content):
            content[place] = rng.randrange(256)
        elif kind == 1 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del content[place : place + length]
        elif kind == 3:
            content[place:place] = content[place : place + length] * rng.choice((1, 2, 10))
        elif kind == 4:
            content[place:place] = rng.choice(PIECES)
        elif kind == 5:
            piece = rng.choice(PIECES)
            content[place : place + len(piece)] = piece
        elif kind == 6 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            content[place : place + length] = other[start : start + length]
        else:
            content[place:place] = rng.randbytes(rng.randrange(1, 9))
        if not content:
            content = bytearray(b"\x00")
    return bytes(content[:LARGEST])


def of_value(value: Any, rng: random.Random) -> Any:
    """Return a copy of a value in which one or a few parts are replaced, left out, repeated or renamed."""
    for _ in range(1 << rng.randrange(3)):
        places = _places(value)
        if not places:
            return deepcopy(rng.choice(VALUES))
        parent, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0 and isinstance(parent, dict):
            parent.pop(key)
        elif kind == 1 and isinstance(parent, dict):
            parent[rng.choice((*map(str, parent), "x", "<b>", "\x00", ""))] = parent.pop(key)
        elif kind == 2 and isinstance(parent, list):
            parent[key:key] = parent[key : key + 1] * rng.choice((1, 2, 20))
        elif kind == 3:
            other, at = rng.choice(places)
            try:
                parent[key] = json.loads(json.dumps(other[at]))
            except (LookupError, TypeError, ValueError):  # it was removed before
                pass
        elif kind == 4 and isinstance(parent[key], str):
            text = parent[key]
            parent[key] = text[: rng.randrange(len(text) + 1)] + rng.choice(("", "\n", "x", "<i>", "é", "\x07", "-"))
        else:
            parent[key] = deepcopy(rng.choice(VALUES))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        here = waiting.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        found += [(here, key) for key in keys]
        waiting += [here[key] for key in keys]
    return found


def of_json(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return a changed JSON text, or JSON lines; bytes that are no JSON are changed as bytes."""
    if rng.random() < 0.25:
        return of_bytes(data, others, rng)
    try:
        lines = [json.loads(line) for line in data.decode().split("\n") if line] or [None]
        place = rng.randrange(len(lines))
        lines[place] = of_value(lines[place], rng)
        return b"".join(json.dumps(line).encode() + b"\n" for line in lines)[:LARGEST]
    except (ValueError, RecursionError):
        return of_bytes(data, others, rng)


def packed(mutate: Callable[[bytes, list[bytes], random.Random], bytes]) -> Callable[..., bytes]:
    """Return a mutation of gzip files: mostly of what is inside."""

    def of(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
        try:
            inside = gzip.decompress(data)[:LARGEST] if rng.random() < 0.8 else None
        except Exception:  # noqa: BLE001 - a damaged file
            inside = None
        return of_bytes(data, others, rng) if inside is None else gzip.compress(mutate(inside, [], rng), 1, mtime=0)

    return of
