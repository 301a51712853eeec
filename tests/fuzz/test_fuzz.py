"""Every parser handles its corpus, with the inputs of past findings, and some hundred changes of it."""

from __future__ import annotations

import random

import pytest

from labkit.errors import UserError
from tests.fuzz.__main__ import corpus, names, parser
from tests.fuzz.check import CPU_S, attempt, documented, limited_memory, watch_actions

CHANGES = 200


@pytest.mark.parametrize("name", names())
def test_every_input_gives_a_value_or_one_sentence(name: str) -> None:
    module, seeds, rng = parser(name), corpus(name), random.Random(0)
    module.run(seeds[0])  # what is imported and cached here takes no part in the limits below
    watch_actions()
    problems = {}
    with limited_memory():
        for data in [*seeds, *(module.mutate(rng.choice(seeds), seeds, rng) for _ in range(CHANGES))]:
            if problem := attempt(module.run, data):
                problems[problem] = data[:200]
    assert problems == {}


def test_the_corpus_is_small_and_has_a_folder_for_each_parser() -> None:
    for name in names():
        assert 0 < sum(map(len, corpus(name))) < 100_000, name


def _hang(_: bytes) -> None:
    while True:
        pass


def _fill(_: bytes) -> None:
    with documented():
        try:
            bytearray(2**40)
        except MemoryError as error:
            raise UserError("refused") from error


def _start(_: bytes) -> None:
    import subprocess

    subprocess.run(["true"])


def _say(_: bytes) -> None:
    with documented():
        raise _Long


class _Long(UserError):
    def __str__(self) -> str:
        return "two\nlines"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (_hang, "it takes more than"),
        (_fill, "asks for more memory"),
        (_start, "it calls subprocess.Popen"),
        (_say, "no sentence"),
        (lambda data: data[7], "IndexError"),
    ],
)
def test_each_fault_is_found(run: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.check.CPU_S", CPU_S / 100)
    watch_actions()
    assert said in (attempt(run, b"x") or "")  # type: ignore[arg-type]
