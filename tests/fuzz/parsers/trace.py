"""A trace of PyTorch's profiler for `labkit trace FILE`, plain or packed."""

import random

from labkit.measure.trace import analyse
from labkit.results.trace_tables import sentence, tables
from tests.fuzz.check import check_sentence, documented, written
from tests.fuzz.mutate import of_json, packed

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    file = written("trace.json", data)
    with documented():
        traced = analyse(file)
        check_sentence(sentence(traced))
        for table in tables(traced).values():
            table.to_string(index=False)
        for note in traced.notes:
            check_sentence(note)


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    return (packed(of_json) if data.startswith(b"\x1f\x8b") else of_json)(data, others, rng)
