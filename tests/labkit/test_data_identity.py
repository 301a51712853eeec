"""What a data option names follows from evidence, and a message names what is there, not a cause that is not."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labkit.data import ilsvrc2012, imagenet32, inspect, open_data
from labkit.data.content import contents, what_is
from labkit.data.identity import identify
from labkit.errors import DataError, UserError
from tests.archives import CLASS_FOLDERS, write_jpegs, write_npz, write_pickled
from workbook.engines import torchvision_files
from workbook.reuters import open_documents

torch = pytest.importorskip("torch")

FALSE_CAUSES = ("fetch", "copy", "damaged", "truncated")


def saved(save: Callable[[io.BytesIO], Any]) -> bytes:
    save(stream := io.BytesIO())
    return stream.getvalue()


def tar(*names: str) -> bytes:
    def write(stream: io.BytesIO) -> None:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(name), io.BytesIO())

    return saved(write)


def zipped(*names: str) -> bytes:
    def write(stream: io.BytesIO) -> None:
        with zipfile.ZipFile(stream, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")

    return saved(write)


TFRECORD = bytes.fromhex("0300000000000000b099490e6162636e57f121")  # as TensorFlow writes b"abc"
FILES: dict[str, tuple[bytes, str]] = {
    "a pickle of protocol 0": (pickle.dumps({"data": [1]}, protocol=0), "a pickle"),
    "a pickle of protocol 1": (pickle.dumps({"data": [1]}, protocol=1), "a pickle"),
    "a pickle of protocol 5": (pickle.dumps({"data": [1]}, protocol=5), "a pickle"),
    "an npz": (saved(lambda file: np.savez(file, x_train=[1], y_train=[2])), "an .npz archive of x_train, y_train"),
    "an npy": (saved(lambda file: np.save(file, [1])), "a single array of NumPy"),
    "a zip": (zipped("train_data_batch_1"), "a zip archive of train_data_batch_1 (unpack it)"),
    "weights": (saved(lambda file: torch.save({"a": torch.ones(1)}, file)), "a file of torch.save"),
    "old weights": (saved(lambda at: torch.save({}, at, _use_new_zipfile_serialization=False)), "a file of torch.save"),
    "a gzip'd batch": (gzip.compress(pickle.dumps({})), "compressed by gzip"),
    "an lz4": (b'\x04"M\x18d@\xa7', "compressed by lz4"),
    "a tar": (tar("a.jpeg", "b.input.png", "a.json"), "a tar archive of files that end in .jpeg, .png, .json"),
    "a web page": (b"\n<!DOCTYPE html>\n<html><title>Log in</title>", "a web page (HTML)"),
    "an error of S3": (
        b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>',
        "an error message of a server",
    ),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "a Git LFS pointer"),
    "a TFRecord": (TFRECORD, "a TFRecord file"),
    "a Parquet file": (b"PAR1" + bytes(20) + b"PAR1", "a Parquet file"),
    "a text": (b"n01440764 1\n", "text"),
    "nothing": (b"", "an empty file"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_told_by_its_first_bytes(name: str, tmp_path: Path) -> None:
    content, said = FILES[name]
    (tmp_path / "val_data").write_bytes(content)
    assert what_is(tmp_path / "val_data").startswith(said)


def as_batch(content: bytes, folder: Path) -> None:
    (write_npz(folder) / "train_data_batch_3.npz").write_bytes(content)
    imagenet32.inspect(folder)


def as_image(content: bytes, folder: Path) -> None:
    (folder / "a.JPEG").write_bytes(content)
    ilsvrc2012.read_image(folder / "a.JPEG")


def as_newswires(content: bytes, folder: Path) -> None:
    (folder / "reuters.npz").write_bytes(content)
    open_documents(str(folder / "reuters.npz"))


def as_weights(content: bytes, folder: Path) -> None:
    (folder / "resnet18-f37072fd.pth").write_bytes(content)
    torchvision_files.check_file(folder / "resnet18-f37072fd.pth")


def as_folder(content: bytes, folder: Path) -> None:
    (folder / "part-00").write_bytes(content)
    open_data(str(folder))


READERS = {"batch": as_batch, "image": as_image, "newswires": as_newswires, "weights": as_weights, "folder": as_folder}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_says_what_it_found_and_no_false_cause(
    reader: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "given").mkdir()
    content, said = FILES[name]
    if reader == "weights" and name.endswith("weights"):
        said = "torchvision's resnet18"
    with pytest.raises(UserError) as caught:
        READERS[reader](content, tmp_path / "given")
    message = str(caught.value).lower()
    assert said.lower() in message, message
    assert not [word for word in FALSE_CAUSES if word in message], message


@pytest.mark.parametrize("write", [write_npz, write_pickled])
def test_a_file_that_is_cut_short_is_called_so(write: Callable[[Path], Path], tmp_path: Path) -> None:
    file = next(write(tmp_path).glob("train_data_batch_9*"))
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"truncated or damaged .*; fetch it again"):
        imagenet32.inspect(tmp_path)


# ---- folders --------------------------------------------------------------------------------------------------------

SOME = CLASS_FOLDERS[::10]  # as many as ImageNet-100
HUGGING_FACE = "{c}_{}_{c}.JPEG"


def two(folder: Path) -> None:
    write_jpegs(folder / "train", SOME, "{c}_{}.JPEG")
    write_jpegs(folder / "val", SOME, "ILSVRC2012_val_{:08}.JPEG")


def png(folder: Path) -> None:
    (folder / "train" / "cat").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(folder / "train" / "cat" / "1.png")


FOLDERS: dict[str, tuple[Callable[[Path], Any], list[tuple[str, str, bool]], str]] = {
    "a hundred classes of ImageNet": (
        two,
        [("validation", "ilsvrc2012", False), ("files", "own_jpegs", True)],
        "this folder 100",
    ),
    "ImageNet's training images": (
        lambda folder: write_jpegs(folder / "ILSVRC/Data/CLS-LOC/train", CLASS_FOLDERS, HUGGING_FACE, each=1),
        [("files", "ilsvrc2012", True)],
        "which are read from files",
    ),
    "its classes with other names": (
        lambda folder: write_jpegs(folder / "train", CLASS_FOLDERS, "{}.JPEG", each=1),
        [("files", "own_jpegs", True)],
        "own training images in files, 1,000 classes",
    ),
    "two classes of images of many sizes": (
        lambda folder: write_jpegs(folder / "train", ["cat", "dog"], each=7),
        [("files", "own_jpegs", True)],
        "own training images in files, 2 classes, which",
    ),
    "its classes and names, scaled": (
        lambda folder: write_jpegs(folder / "train", CLASS_FOLDERS, "{c}_{}.JPEG", each=1, px=16),
        [("files", "own_jpegs", True)],
        "16 x 16 pixels each",
    ),
    "Tiny ImageNet": (
        lambda folder: [write_jpegs(folder / "train" / name, ["images"]) for name in CLASS_FOLDERS[:3]],
        [("files", "own_jpegs", False)],
        "holds 1 folder (images); labkit reads training images in files",
    ),
    "PNG images": (png, [("files", "own_jpegs", False)], "holds 1.png (a PNG image); labkit reads"),
    "shards": (
        lambda folder: [(folder / f"{n}.tar").write_bytes(tar("0.input.jpg", "1.input.jpg", "0.cls")) for n in "01"],
        [],
        "2 files .tar, such as 0.tar (a tar archive of files that end in .jpg, .cls)",
    ),
    "ImageNet32, packed": (
        lambda folder: (folder / "Imagenet32_val.zip").write_bytes(zipped("val_data")),
        [],
        "Imagenet32_val.zip (a zip archive of val_data (unpack it))",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_told_by_its_classes_names_and_sizes(name: str, tmp_path: Path) -> None:
    write, expected, said = FOLDERS[name]
    write(tmp_path)
    identity = identify(str(tmp_path))
    assert [(part.role, part.name, not part.reason) for part in identity.parts] == expected
    with pytest.raises(DataError) as caught:
        open_data(str(tmp_path))
    described = " ".join([str(caught.value), identity.why_none(), *(part.words for part in identity.parts)])
    assert said in described and not [word for word in FALSE_CAUSES if word in described]


def test_training_images_are_counted(tmp_path: Path) -> None:
    write_jpegs(tmp_path / "train", ["cat", "dog"], each=4)
    (tmp_path / "train" / "cat" / "0.JPEG").rename(tmp_path / "train" / "cat" / "0.jpg")
    (counted,) = inspect(identify(str(tmp_path)))
    assert all(fact in counted for fact in ("2 classes", "8 images", "7 .JPEG", "1 .jpg"))


@pytest.mark.parametrize(
    "address",
    [
        "https://user:secret@host/imagenet-{000000..000146}.tar",
        "https:/user:sec/ret@host/x",
        "s3://bucket/a?token=secret#secret",
        "pipe:curl -H 'secret' https://host/x",
        "user:secret@host:/data",
    ],
)
def test_no_message_repeats_an_address(address: str) -> None:
    with pytest.raises(UserError, match="address") as caught:
        open_data(address)
    assert not re.search("sec|ret|user:|host|token", str(caught.value))


def test_many_files_are_named_by_their_endings(tmp_path: Path) -> None:
    assert contents(tmp_path) == "nothing"
    for number in range(6):
        (tmp_path / f"c{number}").mkdir()
        (tmp_path / f"{number}.txt").write_text("a")
    assert all(fact in contents(tmp_path) for fact in ("6 folders (c0, c1, c2, c3, …)", "6 files .txt", "0.txt (text)"))
    assert "No such file" in contents(tmp_path / "absent")
