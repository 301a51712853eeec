"""Tests of records and data sets of strangers that lie: bombs, false headers, other formats. Each gets one sentence."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labkit.data.ilsvrc2012 import read_image
from labkit.data.imagenet32 import _check_labels, _load
from labkit.errors import LabkitError, UserError
from tests.workbook.made_records import HOST, blocks
from tests.workbook.test_changed_files import limited_memory
from tests.workbook.test_site import described
from workbook.hardware.host import read_host
from workbook.records.series_store import COLUMNS, SeriesStore
from workbook.records.store import LARGEST_BYTES, Store
from workbook.reuters.newswires import source
from workbook.storage.forms import open_stored
from workbook.trials.trial import Trial

STUDY = "01_training"


def lines(**changes: Any) -> bytes:
    """Return the line of a record with other fields; a value that is a function gets the field's value."""
    values = json.loads(blocks(STUDY, Trial(), 1, 500.0).line())
    for name, value in changes.items():
        values[name] = value(values[name]) if callable(value) else value
    return json.dumps(values).encode() + b"\n"


def records(folder: Path, content: bytes, ending: str = ".jsonl") -> None:
    path = folder / "records" / HOST / f"{STUDY}{ending}"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    Store(folder).read(STUDY, HOST)


def sparse(folder: Path) -> None:
    """Read a file of records of 1 GB."""
    path = folder / "records" / HOST / f"{STUDY}.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(10**9)
    Store(folder).read(STUDY, HOST)


def gzip_bomb(unpacked_bytes: int) -> bytes:
    """Return a gzip file of zeros; such files may follow each other."""
    return gzip.compress(bytes(1 << 20), mtime=0) * (unpacked_bytes >> 20)


def queries(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a record with half a gigabyte of packed latencies."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    return result | {"queries": {"images": 1, "asked_for": 1, "latency_ns": b64encode(packed).decode()}}


def pickled(folder: Path, content: bytes) -> None:
    (folder / "val_data").write_bytes(content)
    batch = _load(folder / "val_data", "pickle")
    _check_labels(folder / "val_data", batch["labels"], 1)


def nested_key(depth: int = 60) -> bytes:
    """Return a pickle whose dictionary has a key of nested tuples: its hash takes 2^depth steps."""
    return b"\x80\x04}()" + b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(depth)) + b"K\x01u."


def nested_labels(depth: int = 40) -> bytes:
    """Return a pickle whose labels are a list of one list twice, and so on."""
    levels = b"".join(b"q" + bytes([n]) + b"0](h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(depth))
    return b"\x80\x04}(X\x06\x00\x00\x00labels](K\x01e" + levels + b"u."


def encoded_again(times: int = 2_000, size: int = 1 << 20) -> bytes:
    """Return a pickle that encodes one text of a megabyte again and again."""
    text = b"X" + struct.pack("<I", size) + b"a" * size
    again = b"h\x01(h\x00X\x06\x00\x00\x00latin1tR"
    return b"\x80\x02" + text + b"q\x000c_codecs\nencode\nq\x010](" + again * times + b"e."


def npz(folder: Path, members: dict[str, bytes], name: str = "val_data.npz") -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return folder / name


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def zip_bomb(folder: Path) -> None:
    with zipfile.ZipFile(folder / "val_data.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("data.npy", "w", force_zip64=True) as file:
            file.write(header((2**20, 3072)))
            for _ in range(1200):
                file.write(bytes(1 << 20))
        archive.writestr("labels.npy", header((1,)) + b"\x01")
    _load(folder / "val_data.npz", "npz")


def reuters(folder: Path, members: dict[str, bytes]) -> None:
    list(source(npz(folder, members, "reuters.npz")).chunks("train"))


def image(folder: Path, content: bytes) -> None:
    (folder / "a.JPEG").write_bytes(content)
    read_image(folder / "a.JPEG")


def saved(size: tuple[int, int], kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("L", size).save(file, kind)
    return file.getvalue()


def huge_png() -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    about = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def host(folder: Path, **changes: Any) -> None:
    path = folder / "hosts" / f"{HOST}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(described(HOST) | changes))
    read_host(folder, HOST)


def series(folder: Path, write: Callable[[Path], None]) -> None:
    path = folder / "telemetry" / HOST / f"{STUDY}.parquet"
    path.parent.mkdir(parents=True)
    write(path)
    try:
        SeriesStore(folder, HOST, STUDY).read()
    except OSError as error:
        raise UserError(str(error)) from error  # as `Results.series` does


def many_rows(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    zero = pa.array(np.zeros(2**25, np.int8))
    parquet.write_table(pa.table(dict.fromkeys(COLUMNS, zero)), path, compression="zstd")


def texts_for_numbers(path: Path) -> None:
    import pandas as pd

    pd.DataFrame({name: ["x"] for name in COLUMNS}).to_parquet(path)


def index(folder: Path, **changes: Any) -> None:
    values = {"form": "shards", "classes": 2, "images": 3, "checksum": "a", "files": [["../../secret", 3]]} | changes
    (folder / "shards").mkdir()
    (folder / "shards" / "index.json").write_text(json.dumps(values))
    open_stored(folder, "shards")


# Each kind of bad input: what reads it, and a fact that the sentence names.
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "records of 1 GB": (sparse, "134,217,728 bytes"),
    "packed records that unpack to 1 GB": (lambda to: records(to, gzip_bomb(2**30), ".jsonl.gz"), "134,217,728 bytes"),
    "a host that climbs out": (lambda to: records(to, lines(host="../../x")), "host '../../x'"),
    "a study that climbs out": (lambda to: records(to, lines(study="../../x")), "study '../../x'"),
    "half a gigabyte of latencies in a record": (lambda to: records(to, lines(result=queries)), "67,108,864 bytes"),
    "a record with a schema that is text": (lambda to: records(to, lines(schema="2")), "`schema`"),
    "a record nested 100,000 times": (lambda to: records(to, b'{"a":' * 100_000 + b"\n"), "nested"),
    "a record whose trial is another thing": (
        lambda to: records(to, lines(trial={"framework": "torch"})),
        "workload, model, classes",
    ),
    "a record of 10^30 passes": (
        lambda to: records(to, lines(planned=lambda planned: planned | {"passes": {"a": 10**30}})),
        "64 bits",
    ),
    "a record with blocks of no time": (
        lambda to: records(to, lines(result=lambda result: result | {"host_s": [0.0]})),
        "result.blocks.host_s.0: ",
    ),
    "a record that began at no time": (lambda to: records(to, lines(started_at="<b>")), "started_at: "),
    "a host without a processor": (lambda to: host(to, cpu=None), "(cpu: "),
    "a host whose GPU has no name": (lambda to: host(to, gpus=[{}]), "gpus.0.name: "),
    "series of 33 million rows": (lambda to: series(to, many_rows), "33,554,432 rows"),
    "series with texts for numbers": (lambda to: series(to, texts_for_numbers), "pass, t_s, value"),
    "a pickle that promises 1 TB": (
        lambda to: pickled(to, b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."),
        "beyond its end",
    ),
    "a pickle whose key is never hashed": (lambda to: pickled(to, nested_key()), "other keys"),
    "a pickle whose labels are 2^40 numbers": (lambda to: pickled(to, nested_labels()), "'labels'"),
    "a pickle that encodes a text 2,000 times": (lambda to: pickled(to, encoded_again()), "more than its size"),
    "a pickle with a set": (lambda to: pickled(to, pickle.dumps({"labels": {1}})), "a set"),
    "an npz whose header promises 1 TB": (
        lambda to: _load(npz(to, {"data.npy": header((2**28, 3072)), "labels.npy": header((1,))}), "npz"),
        "(268435456, 3072)",
    ),
    "an npz that unpacks to 1.2 GB": (zip_bomb, "1,258,291,328 bytes"),
    "a reuters.npz whose topics promise 8 TB": (
        lambda to: reuters(to, {"x.npy": as_lists(), "y.npy": header((2**40,), "<i8")}),
        "(1099511627776,)",
    ),
    "a picture of 1 x 65,000 pixels": (lambda to: image(to, saved((1, 65_000), "JPEG")), "1 x 65,000"),
    "a picture of 10^10 pixels": (lambda to: image(to, huge_png()), "pixels"),
    "PostScript called .JPEG": (lambda to: image(to, saved((8, 8), "EPS")), "JPEG nor PNG"),
    "a stored set whose files climb out": (index, "'../../secret'"),
    "a stored set whose to is a command": (
        lambda to: index(to, root="pipe:touch marker; ", files=[["0.tar", 3]]),
        "'pipe:touch marker; '",
    ),
}


def as_lists() -> bytes:
    array = np.empty(2, object)
    array[:] = [[1], [2]]
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("name", BAD)
def test_each_lie_gets_one_sentence_in_bounded_memory(name: str, tmp_path: Path) -> None:
    reads, fact = BAD[name]
    with limited_memory(), pytest.raises(LabkitError) as caught:
        reads(tmp_path)
    message = str(caught.value)
    assert fact in message and message.isprintable() and len(message) < 2_100


def test_a_large_file_of_records_is_far_above_every_committed_one(tmp_path: Path) -> None:
    from tests.committed import committed_reports

    sizes = [len(gzip.decompress(path.read_bytes())) for path in committed_reports().glob("*/records/*/*.gz")]
    assert 20 * max(sizes) < LARGEST_BYTES


def test_a_message_is_one_printable_line_of_limited_length() -> None:
    assert str(LabkitError("ä 日本 ½\nb\x1b[2Jc\ud800")) == "ä 日本 ½ b [2Jc "
    assert len(str(LabkitError("x" * 10**6))) < 2_100
