"""ImageNet32 archives of every published format give the same data. Damaged or hostile archives are refused."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data import imagenet32, open_data
from labkit.data.restricted_pickle import load_plain
from labkit.errors import DataError
from tests.archives import PER_BATCH, VAL, batches, python2_dumps, write_npz, write_parquet, write_pickled

NOTHING_RAN = "nothing of it was executed"
TRAIN = sum(PER_BATCH + number for number in range(1, 11))


def renamed(folder: Path, ending: str, write: Callable[[Path], Path]) -> Path:
    for file in write(folder).iterdir():
        file.rename(folder / f"{file.name.partition('.')[0]}{ending}")
    return folder


def unpacked(folder: Path) -> Path:
    """Write batches as programs leave them that unpack each archive into a folder of its own."""
    for file in write_pickled(folder / "ImageNet32" / "Imagenet32_train").glob("val_data"):
        (folder / "ImageNet32" / "Imagenet32_val").mkdir()
        file.rename(folder / "ImageNet32" / "Imagenet32_val" / "val_data")
    return folder


WRITERS: dict[str, Callable[[Path], Path]] = {
    "npz-without-ending": partial(renamed, ending="", write=write_npz),
    "pickles-called-npz": partial(renamed, ending=".npz", write=write_pickled),
    "pickles-called-pkl": partial(renamed, ending=".pkl", write=write_pickled),
    "in-subfolders": unpacked,
    "parquet": write_parquet,
    "npz": write_npz,
    "npz-compressed": partial(write_npz, compressed=True),
    "python2": partial(write_pickled, dumps=python2_dumps),
    **{f"protocol{n}": partial(write_pickled, dumps=partial(pickle.dumps, protocol=n)) for n in range(6)},
}


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pickled(tmp_path_factory.mktemp("pickled"))


@pytest.fixture
def archive(pickled: Path, tmp_path: Path) -> Path:
    """Return a copy of a complete pickled archive, which the test may change."""
    return shutil.copytree(pickled, tmp_path / "archive")


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        imagenet32.inspect(path)
    return str(caught.value)


def good_batch() -> dict[str, Any]:
    return next(iter(batches()))[1]


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_gives_the_images_and_labels_that_were_written(form: str, tmp_path: Path) -> None:
    folder = WRITERS[form](tmp_path)
    expected = [batch for _name, batch in batches()]
    read = [*imagenet32.read_batches(folder, "train"), *imagenet32.read_batches(folder, "val")]
    assert len(read) == 11
    for (images, labels), batch in zip(read, expected, strict=True):
        assert images.dtype == np.uint8 and labels.dtype == np.int64
        # Plane by plane: red is the first 1,024 values, row by row.
        assert np.array_equal(images[:, 0, 1, 2], batch["data"][:, 34])
        assert np.array_equal(images[:, 2, 31, 31], batch["data"][:, 3071])
        assert np.array_equal(images.reshape(len(images), -1), batch["data"])
        assert np.array_equal(labels, batch["labels"] - 1)


def test_the_report_gives_the_contents_and_says_that_they_are_a_subset(pickled: Path) -> None:
    *train, val = (set(batch["labels"].tolist()) for _, batch in batches())
    trained = set().union(*train)
    described, of_training, of_validation = imagenet32.inspect(pickled)
    assert described == imagenet32.describe("pickle", TRAIN, VAL)
    assert of_training.startswith(f"{len(trained)} of 1,000") and of_validation.startswith(f"{len(val - trained)} ")
    assert "subset" in described and "subset" not in imagenet32.describe("npz", 1_281_167, 50_000)


def test_labels_that_may_count_from_0_are_doubted(pickled: Path, archive: Path) -> None:
    for file in archive.iterdir():
        batch = pickle.loads(file.read_bytes())
        labels = [min(label, 998) for label in batch["labels"]]
        file.write_bytes(pickle.dumps({**batch, "labels": [*labels[:-1], 999]}))
    doubt = "class 1,000 is missing: if they count from 0, add 1 to each."
    assert doubt in imagenet32.inspect(archive)[0] and doubt not in imagenet32.inspect(pickled)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(archive.parent / "cache"))
        assert doubt in open_data(str(archive)).description


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"edge_px": 64}, "64 x 64 pixels"),
        ({"classes": 100}, "up to 99;"),
    ],
)
def test_parquet_of_another_set_is_refused(options: dict[str, int], said: str, tmp_path: Path) -> None:
    assert said in refusal(write_parquet(tmp_path, **options))


def test_missing_batches_are_named(archive: Path) -> None:
    (archive / "train_data_batch_7").unlink()
    (archive / "val_data").unlink()
    message = refusal(archive)
    assert "train_data_batch_7, val_data." in message and "train_data_batch_6" not in message


def test_a_complete_format_is_read_beside_an_incomplete_one(archive: Path) -> None:
    whole = write_npz(archive.parent / "npz")
    shutil.copy(whole / "val_data.npz", archive)
    assert "pickle archive" in imagenet32.inspect(archive)[0]
    (archive / "val_data").unlink()
    message = refusal(archive)
    assert "lacks val_data;" in message and "val_data.npz is" in message


def test_paths_that_are_no_archive_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert ["no folder" in refusal(tmp_path / name) for name in ("absent", "file", "empty")] == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data": good_batch()["data"][:-1]}, "12 images and 13 labels"),
        ({"labels": good_batch()["labels"][:-1]}, "13 images and 12 labels"),
        ({"data": good_batch()["data"][:, :1024]}, "shape (13, 1024)"),
        ({"data": good_batch()["data"].astype(np.float32)}, "type float32 where uint8"),
        ({"data": [1, 2, 3]}, "type list where uint8"),
        ({"data": None}, "type NoneType where uint8"),
        ({"labels": good_batch()["labels"] + 1000}, "labels must be 1..1000, but are 1001.."),
        ({"mean": np.array([[1], [2, 3]], dtype=object)}, "not of plain numbers"),
        ({"labels": good_batch()["labels"] - 1}, "; add 1 to each label."),
        ({"labels": good_batch()["labels"] * 1.0}, "not a list of integers"),
        ({"labels": [[1], [2, 3]]}, "not a list of integers"),
        ({"labels": [2**80] * 13}, "not a list of integers"),
        ({"labels": ["1"] * 13}, "not a list of integers"),
        ({"labels": "1"}, "not a list of integers"),
    ],
)
def test_a_batch_that_is_not_as_published_is_refused(changes: dict[str, Any], expected: str, archive: Path) -> None:
    (archive / "train_data_batch_3").write_bytes(pickle.dumps({**good_batch(), **changes}))
    message = refusal(archive)
    assert expected in message and "train_data_batch_3" in message


def test_a_batch_without_labels_is_refused(archive: Path) -> None:
    (archive / "val_data").write_bytes(pickle.dumps({"data": good_batch()["data"]}))
    assert "no 'labels'" in refusal(archive)


def test_labels_may_be_numpy_numbers(archive: Path) -> None:
    batch = good_batch()
    (archive / "train_data_batch_1").write_bytes(pickle.dumps({**batch, "labels": list(batch["labels"])}))
    _images, labels = next(iter(imagenet32.read_batches(archive, "train")))
    assert np.array_equal(labels, batch["labels"] - 1)


@pytest.mark.parametrize(
    ("write", "spoil", "expected"),
    [
        (write_pickled, lambda raw: raw[: len(raw) // 2], "truncated"),
        (write_npz, lambda raw: raw[: len(raw) // 2], "truncated"),
        (write_npz, lambda _: b"", "is an empty file"),
        (write_npz, lambda raw: raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:], "damaged"),
        (write_npz, lambda _: pickle.dumps(good_batch()), "train_data_batch_4.npz is a pickle"),
    ],
)
def test_a_damaged_file_or_one_of_another_format_is_refused(
    write: Callable[..., Path], spoil: Callable[[bytes], bytes], expected: str, tmp_path: Path
) -> None:
    file = next(write(tmp_path).glob("train_data_batch_4*"))
    file.write_bytes(spoil(file.read_bytes()))
    message = refusal(tmp_path)
    assert "train_data_batch_4" in message and expected in message


class Call:
    """An object that pickles as a call of `function`, which runs on loading."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def attacks(marker: Path) -> dict[str, bytes]:
    """Return pickles that create the file `marker`, or read foreign memory, if the standard unpickler loads them."""
    batch, command, code = good_batch(), f"touch {marker}", f"open({str(marker)!r}, 'w')"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    run = b"(S" + repr(command).encode() + b"\nt"
    return {
        "os.system": pickle.dumps({**batch, "labels": Call(os.system, command)}),
        "subprocess.run": pickle.dumps({**batch, "mean": Call(subprocess.run, ["touch", str(marker)])}),
        "builtins.exec": pickle.dumps({**batch, "data": Call(exec, code)}, protocol=2),
        "builtins.eval as a key": pickle.dumps({Call(eval, code): 1}),
        "not even a dictionary": pickle.dumps(Call(os.system, command)),
        "numpy's own runstring": b"cnumpy.testing\nrunstring\n(S" + repr(code).encode() + b"\n(dtR.",
        "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0flib.npyio.np.os\x93.",
        "reconstruct of a command": b"cnumpy.core.multiarray\n_reconstruct\n(cposix\nsystem\n" + run + b"S'b'\ntR.",
        "an instance opcode": b"(S" + repr(command).encode() + b"\nios\nsystem\n.",
        "state with a command": array + b"(I1\n(I1\ntcposix\nsystem\n" + run + b"RI00\nS'x'\ntb.",
        "a scalar of object type": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\ntRS'AAAAAAAA'\ntR.",
        "a structured type": b"cnumpy\ndtype\n(S'V8'\ntR(I3\nS'|'\nN(S'a'\nt(dI8\nI1\nI0\ntb.",
        "an altered stand-in": b"cnumpy\ndtype\n(dS'_function'\nI1\nsb.",
        "an altered array": array + b"(NN(dS'numpy'\nI1\nstb.",
        "a called array": b"cnumpy\nndarray\n((I1\nttR.",
        "a persistent id": b"Pevil\n.",
        "an extension code": b"\x80\x02\x82\x01.",
    }


@pytest.mark.parametrize("name", attacks(Path("marker")))
def test_a_hostile_pickle_is_refused_and_nothing_runs(name: str, archive: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (archive / "train_data_batch_2").write_bytes(attacks(marker)[name])
    message = refusal(archive)
    assert "train_data_batch_2" in message
    if name == "os.system":
        assert f"it names {os.system.__module__}.system" in message and NOTHING_RAN in message
    if name == "a scalar of object type":
        assert "Python's objects" in message
    assert not marker.exists()


@pytest.mark.parametrize("name", ["os.system", "subprocess.run", "builtins.exec", "an instance opcode"])
def test_the_attacks_are_real(name: str, tmp_path: Path) -> None:
    """These pickles do run if the standard unpickler loads them, so the tests above would notice."""
    marker = tmp_path / "marker"
    pickle.loads(attacks(marker)[name], encoding="bytes" if name == "builtins.exec" else "ASCII")
    assert marker.exists()


def test_five_bytes_of_a_pickle_cannot_take_all_memory() -> None:
    """Opcode `r` stores an object under a number. The unpickler in C would allocate twice that number of places."""
    tracemalloc.start()
    load_plain(io.BytesIO(b"}r\x00\x00\x40\x00."), size=7)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1e6


def test_an_npz_with_objects_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    file = write_npz(tmp_path / "archive") / "train_data_batch_5.npz"
    np.savez(file, data=good_batch()["data"], labels=np.array([Call(os.system, f"touch {marker}")], dtype=object))
    assert NOTHING_RAN in refusal(file.parent)
    assert not marker.exists()
    with np.load(file, allow_pickle=True) as plainly:
        assert plainly["labels"].size and marker.exists()


@given(position=st.integers(0, 10**6), value=st.integers(0, 255), content=st.sampled_from([0, 2, 4, 5]))
def test_any_changed_byte_gives_a_dictionary_or_a_pickle_error(position: int, value: int, content: int) -> None:
    """Reading a changed pickle either works or raises `UnpicklingError`."""
    raw = bytearray(pickle.dumps({"data": np.arange(6, dtype=np.uint8), "labels": [1, np.int64(2)]}, protocol=content))
    raw[position % len(raw)] = value
    with contextlib.suppress(pickle.UnpicklingError):
        assert isinstance(load_plain(io.BytesIO(bytes(raw)), size=len(raw)), dict)
