"""Tests of reading Keras's reuters.npz: split and word counts like Keras's, and refusal of other files."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.errors import DataError, UserError
from tests.archives import python2_dumps
from workbook.reuters import newswires as reuters
from workbook.reuters import open_documents
from workbook.reuters.newswires import CLASSES, WORDS

DOCUMENTS = 60


def newswires(count: int = DOCUMENTS) -> tuple[list[list[int]], list[int]]:
    draw = random.Random(0)
    lists = [[draw.randrange(1, 30_980) for _ in range(draw.randrange(1, 40))] for _ in range(count)]
    lists[0] = [9_996, 9_997, 1]  # the last word that is kept, and the first that is dropped
    return lists, [draw.randrange(CLASSES) for _ in range(count)]


def as_objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def member(array: np.ndarray, dumps: Callable[[Any], bytes] | None = None) -> bytes:
    """Return the bytes of an `.npy` file. `dumps` pickles an array of objects."""
    stream = io.BytesIO()
    if dumps is None:
        np.save(stream, array)
    else:
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        stream.write(dumps(array))
    return stream.getvalue()


def write(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file


def sound() -> dict[str, bytes]:
    lists, topics = newswires()
    return {"x": member(as_objects(lists)), "y": member(np.array(topics))}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))


def refusal(file: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_documents(str(file))
    assert file.name in str(caught.value)
    return str(caught.value)


FORMS: dict[str, Callable[[Any], bytes] | None] = {
    "numpy.save": None,
    "python2": python2_dumps,
    **{f"protocol{n}": lambda array, n=n: pickle.dumps(array, protocol=n) for n in (2, 3, 4)},
}


@pytest.mark.parametrize("form", FORMS)
def test_newswires_are_shuffled_split_and_counted_as_in_keras(form: str, tmp_path: Path) -> None:
    lists, topics = newswires()
    members = {"x": member(as_objects(lists), FORMS[form]), "y": member(np.array(topics))}
    read = open_documents(str(write(tmp_path / "reuters.npz", members)))
    assert (read.name, read.classes, read.words, len(read.train), len(read.val)) == ("reuters", 46, WORDS, 48, 12)

    # Compute the expected sets word by word, from the same random generator in another way.
    state = np.random.get_state()
    order = list(range(DOCUMENTS))
    np.random.seed(113)
    np.random.shuffle(order)
    np.random.set_state(state)
    for place, number in enumerate(order):
        split, row = (read.train, place) if place < 48 else (read.val, place - 48)
        expected = {1} | {word + 3 if word + 3 < 10_000 else 2 for word in lists[number]}
        has = np.unpackbits(split.images[row], bitorder="little")
        assert set(np.flatnonzero(has).tolist()) == expected
        assert split.labels[row] == topics[number]


def test_of_the_published_11228_documents_8982_are_for_training(tmp_path: Path) -> None:
    lists, topics = [[number % 9_000 + 1] for number in range(reuters.PUBLISHED_DOCUMENTS)], [0, 45] * 5_614
    members = {"x": member(as_objects(lists)), "y": member(np.array(topics))}
    read = open_documents(str(write(tmp_path / "reuters.npz", members)))
    assert (len(read.train), len(read.val)) == (8_982, 2_246)
    assert "as many as published" in read.description
    few = open_documents(str(write(tmp_path / "few.npz", sound())))
    assert "not the published 11,228" in few.description


def test_a_file_is_read_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "reuters.npz", sound())
    first, read = open_documents(str(file)), reuters._read
    monkeypatch.setattr(reuters, "_read", None)
    assert open_documents(str(file)).checksum == first.checksum
    monkeypatch.setattr(reuters, "_read", read)
    lists, topics = newswires(50)
    write(file, {"x": member(as_objects(lists)), "y": member(np.array(topics))})
    assert len(open_documents(str(file)).train) == 40


class Call:
    """An object that pickles as a call of a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


def test_a_file_with_pickled_calls_is_refused_and_runs_no_code(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    command = Call(os.system, f"touch {marker}")
    for number, content in enumerate(([command], [[command]], [[1, 2], [command]])):
        file = write(tmp_path / f"bad{number}.npz", {**sound(), "x": member(as_objects(content))})
        message = refusal(file)
        assert f"it names {os.system.__module__}.system" in message and "Nothing of it was executed" in message
    hidden = member(np.array(newswires()[1]).astype(object), lambda _: pickle.dumps(command))
    assert "it names" in refusal(write(tmp_path / "hidden.npz", {**sound(), "x": hidden}))
    in_topics = refusal(write(tmp_path / "topics.npz", {**sound(), "y": member(as_objects([command]))}))
    assert "its y.npy is an array of object" in in_topics
    assert not marker.exists()
    os.system(f"touch {marker}")
    assert marker.exists(), "the command would have made the marker"


SHARED = [1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x": member(np.arange(60))}, "'x' is an array of int64"),
        ({"x": member(as_objects([["one", "two"], [3]]))}, "other than lists of whole numbers"),
        ({"x": member(as_objects([[True], [3]]))}, "other than lists of whole numbers"),
        ({"x": member(as_objects([3, 4]))}, "other than lists of whole numbers"),
        ({"x": member(as_objects([SHARED] * 60))}, "several times"),
        ({"x": member(as_objects([[-1], *newswires()[0][1:]]))}, "below 0"),
        ({"x": member(as_objects([[1], [2]]), lambda _: pickle.dumps([[1], [2]]))}, "other than an array of lists"),
        ({"x": member(as_objects([[1], [2]]), lambda _: pickle.dumps(np.arange(2)))}, "no array of lists"),
        ({"x": member(as_objects([[1], [2]]))}, "2 newswires and 60 topics"),
        ({"y": member(np.array(newswires()[1]) + CLASSES)}, "0..45 are expected"),
        ({"y": member(np.array(newswires()[1]) - 1)}, "topics -1.."),
        ({"y": member(np.array(newswires()[1]) * 1.0)}, "'y' is an array of float64"),
        ({"y": member(np.array(newswires()[1]).reshape(30, 2))}, "shape (30, 2)"),
    ],
)
def test_a_file_with_other_contents_is_refused(changes: dict[str, bytes], expected: str, tmp_path: Path) -> None:
    assert expected in refusal(write(tmp_path / "other.npz", {**sound(), **changes}))


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write(tmp_path / "reuters.npz", sound()).read_bytes()
    for cut in (len(whole) // 2, len(whole) - 30):
        (tmp_path / "cut.npz").write_bytes(whole[:cut])
        assert "truncated or damaged" in refusal(tmp_path / "cut.npz")
    short = sound()["x"][:-40]
    assert "truncated" in refusal(write(tmp_path / "short.npz", {**sound(), "x": short}))
    assert "is an .npz archive of x; give" in refusal(write(tmp_path / "no_topics.npz", {"x": sound()["x"]}))
    assert "truncated or damaged" in refusal(write(tmp_path / "no_array.npz", {**sound(), "x": b"nothing"}))
    with pytest.raises(UserError, match=r"REUTERS=.*is no file; name Keras's reuters\.npz"):
        open_documents(str(tmp_path / "absent.npz"))
    with pytest.raises(UserError, match="is no file"):
        open_documents(str(tmp_path))
    monkeypatch.setattr(reuters, "LARGEST_BYTES", 1000)
    assert "x.npy has" in refusal(write(tmp_path / "large.npz", sound()))
