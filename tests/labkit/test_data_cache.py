"""The cache holds complete entries or none, even if it is interrupted, raced, damaged, full or unwritable."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labkit import data
from labkit.data import cache
from labkit.data.dataset import Chunks, DataSet, Source, SplitName
from labkit.errors import DataError, UserError
from tests.archives import write_npz, write_pickled


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LABKIT_CACHE", str(folder))
    return folder


class Made:
    """A source of 60 and 20 images that counts how often it is read. `chunk` is the number of images per chunk."""

    def __init__(self, chunk: int = 7, token: str = "t") -> None:
        rng = np.random.default_rng(1)
        self.arrays: dict[SplitName, tuple[np.ndarray, np.ndarray]] = {
            "train": (rng.integers(0, 256, (60, 3, 32, 32), np.uint8), rng.integers(0, 9, 60)),
            "val": (rng.integers(0, 256, (20, 3, 32, 32), np.uint8), rng.integers(0, 9, 20)),
        }
        self.chunk = chunk
        self.reads = 0
        self.source = Source("made", token, 9, self.chunks, lambda train, val: f"{train} and {val} images.")

    def chunks(self, split: SplitName) -> Chunks:
        self.reads += split == "train"
        images, labels = self.arrays[split]
        for start in range(0, len(images), self.chunk):
            yield images[start : start + self.chunk], labels[start : start + self.chunk]


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def assert_holds(entry: DataSet, made: Made) -> None:
    assert np.array_equal(entry.train.images, made.arrays["train"][0])
    assert np.array_equal(entry.val.labels, made.arrays["val"][1])


def test_an_entry_returns_the_written_arrays_and_statistics_and_reads_its_source_once(folder: Path) -> None:
    made = Made()
    for entry in (cache.cached(made.source), cache.cached(made.source)):
        assert_holds(entry, made)
        assert isinstance(entry.train.images, np.memmap) and not entry.train.images.flags.writeable
        assert entry.train.labels.dtype == np.int16
        assert entry.mean == pytest.approx(made.arrays["train"][0].mean(axis=(0, 2, 3)), rel=1e-12)
        assert entry.std == pytest.approx(made.arrays["train"][0].std(axis=(0, 2, 3)), rel=1e-12)
        assert (entry.name, entry.classes, entry.description) == ("made", 9, "60 and 20 images.")
    assert entries(folder) == ["made-t"] and made.reads == 1


def test_the_checksum_depends_on_every_array_and_not_on_the_chunks() -> None:
    def checksum(change: str, chunk: int = 7) -> str:
        made = Made(chunk, token=f"{change}{chunk}")
        if change == "images":
            made.arrays["train"][0][59, 2, 31, 31] ^= 1
        if change == "labels":
            made.arrays["train"][1][0] += 1
        if change == "val":
            made.arrays["val"][0][0] ^= 1
        return cache.cached(made.source).checksum

    assert len({checksum(change) for change in ("none", "images", "labels", "val")}) == 4
    assert len({checksum("none", chunk) for chunk in (1, 7, 60)}) == 1


def truncated(entry: Path) -> None:
    file = entry / "train_images.npy"
    os.truncate(file, file.stat().st_size - 1)


def with_a_byte_more(entry: Path) -> None:
    with (entry / "val_labels.npy").open("ab") as stream:
        stream.write(b"x")


def without_an_array(entry: Path) -> None:
    (entry / "val_images.npy").unlink()


def without_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("{")


def with_another_count(entry: Path) -> None:
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "meta.json").write_text(json.dumps({**meta, "train_images": 59}))


@pytest.mark.parametrize("damage", [truncated, with_a_byte_more, without_an_array, without_meta, with_another_count])
def test_a_damaged_entry_is_rebuilt(damage: Callable[[Path], None], folder: Path) -> None:
    made = Made()
    checksum = cache.cached(made.source).checksum
    damage(folder / "made-t")
    with pytest.raises(DataError):
        cache.open_by_checksum("made", checksum)
    assert_holds(cache.cached(made.source), made)
    assert made.reads == 2 and entries(folder) == ["made-t"]


def test_one_of_several_processes_writes_an_entry_and_the_others_wait(folder: Path) -> None:
    code = """
        from labkit.data import cache
        from tests.labkit.test_data_cache import Made
        made = Made()
        cache.cached(made.source)
        print(made.reads)
    """
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", textwrap.dedent(code)]
    several = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(process.communicate()[0].strip() for process in several) == ["0", "0", "1"]
    assert entries(folder) == ["made-t"]


def test_the_files_of_a_killed_writer_are_never_read_and_the_next_one_deletes_them(folder: Path) -> None:
    code = """
        import os, signal
        from labkit.data import cache
        from tests.labkit.test_data_cache import Made
        made = Made()
        def chunks(split):
            for chunk in made.chunks(split):
                yield chunk
                if split == "val":
                    os.kill(os.getpid(), signal.SIGKILL)
        cache.cached(cache.Source("made", "t", 9, chunks, str))
    """
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert entries(folder) == [".tmp-made-t"] and (folder / ".tmp-made-t" / "train_images.npy").exists()
    made = Made()
    assert_holds(cache.cached(made.source), made)
    assert entries(folder) == ["made-t"]


def test_a_split_without_images_is_refused_and_leaves_nothing(folder: Path) -> None:
    made = Made()
    made.arrays["val"] = (made.arrays["val"][0][:0], made.arrays["val"][1][:0])
    with pytest.raises(DataError, match="no val image"):
        cache.cached(made.source)
    assert entries(folder) == []


def test_a_cache_without_room_or_folder_says_to_set_labkit_cache_and_leaves_nothing(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # the writes fail as on a full disk
    try:
        with pytest.raises(UserError, match="set LABKIT_CACHE to a folder with room"):
            cache.cached(Made().source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert entries(folder) == []
    shutil.rmtree(folder)
    folder.write_text("a file is in the way")
    with pytest.raises(UserError, match="LABKIT_CACHE"):
        cache.cached(Made().source)


def test_the_cache_folder_is_looked_up_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.cache_dir() == Path("/own")
    monkeypatch.setenv("LABKIT_CACHE", "")
    assert cache.cache_dir() == Path("/xdg/labkit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG specification says to ignore a relative path
    assert cache.cache_dir() == Path("/home/someone/.cache/labkit")


def test_an_entry_is_opened_by_checksum_without_its_source(folder: Path) -> None:
    made = Made()
    checksum = cache.cached(made.source).checksum
    cache.cached(Made(token="a-damaged-one-of-the-same-name").source)
    without_meta(folder / "made-a-damaged-one-of-the-same-name")
    assert_holds(data.open_by_checksum("made", checksum), made)
    assert made.reads == 1
    for name, wrong in (("made", "0" * 64), ("digits", checksum)):
        with pytest.raises(DataError, match="cache entry"):
            data.open_by_checksum(name, wrong)


def test_both_formats_of_an_archive_have_one_checksum_and_a_changed_archive_is_read_again(tmp_path: Path) -> None:
    pickled, npz = (data.open_data(str(write(tmp_path / write.__name__))) for write in (write_pickled, write_npz))
    assert pickled.checksum == npz.checksum and (pickled.mean, pickled.std) == (npz.mean, npz.std)
    assert pickled.name == "imagenet32" and pickled.classes == 1000
    assert "subset" in pickled.description and pickled.train.labels.min() >= 0 and pickled.train.labels.max() <= 999
    write_npz(tmp_path / "write_npz", seed=1)  # same names and sizes, another modification time
    assert data.open_data(str(tmp_path / "write_npz")).checksum != npz.checksum


def test_fewer_images_of_an_archive_are_a_seeded_sample_with_its_own_checksum(tmp_path: Path) -> None:
    archive = str(write_npz(tmp_path / "archive"))
    every = data.open_data(archive)
    few, same, other = (data.open_data(archive, train_images=20, val_images=5, seed=seed) for seed in (0, 0, 1))
    assert (len(few.train), len(few.val)) == (20, 5)
    assert few.checksum == same.checksum != other.checksum
    where = [
        next(i for i, image in enumerate(every.train.images) if np.array_equal(image, one)) for one in few.train.images
    ]
    assert where == sorted(set(where)) and where != list(range(20))
    assert every.train.labels[where].tolist() == few.train.labels.tolist()
    assert data.open_data(archive, train_images=10**6).checksum == every.checksum


def test_an_unknown_name_says_what_is_valid() -> None:
    with pytest.raises(UserError) as caught:
        data.open_data("digit")
    assert "digits, synthetic32." in str(caught.value) and "train_data_batch_1" in str(caught.value)
    for count in (0, -1):
        with pytest.raises(UserError, match="at least 1"):
            data.open_data("digits", train_images=count)
