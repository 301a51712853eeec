"""REUTERS=: Keras's `reuters.npz`."""

from labkit.data.reuters import source
from tests.fuzz.check import documented, written
from tests.fuzz.parsers.imagenet32_npz import mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    with documented():
        for split in ("train", "val"):
            for _bits, _topics in source(written("reuters.npz", data)).chunks(split):
                pass
