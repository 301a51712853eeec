"""A changed file of a stranger gives a value or one sentence: it runs nothing, and takes no more memory than it may.

`tests/corpus/<reader>/` holds sound files, and files that a reader once failed on. Hypothesis changes them.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.data.ilsvrc2012 import read_image
from labkit.data.imagenet32 import _check_images, _check_labels, _load
from labkit.errors import LabkitError, UserError
from workbook.hardware.host import read_host
from workbook.hardware.profile import Profile, load_profile
from workbook.paths import ROOT
from workbook.records.selection import at_scale, scale_to_show
from workbook.records.series_store import COLUMNS, SeriesStore
from workbook.records.shared import read_together
from workbook.records.store import Store
from workbook.registry import METRICS, STUDIES
from workbook.report.fingerprint import properties_of_host
from workbook.results.metrics import metric_of, why_missing
from workbook.results.study_records import StudyRecords
from workbook.reuters import newswires as reuters
from workbook.storage.forms import FORMS, open_stored
from workbook.words import configuration_name

HOST, STUDY = "0123456789ab", "01_training"
MEMORY_BYTES = 700 << 20  # that reading may add
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "socket.connect")


@contextmanager
def limited_memory(limit_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Limit the address space of this process to what it has plus `limit_bytes`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Forbidden(BaseException):
    """A reader starts a program or connects. No `except Exception` of the reader catches it."""


_watching: list[bool] = []


@cache
def _watch() -> None:
    """Add the hook once: it can't be removed."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if _watching and event in FORBIDDEN:
            raise Forbidden(f"{event} {arguments!r:.200}")

    sys.addaudithook(hook)


@contextmanager
def nothing_started() -> Iterator[None]:
    """Raise Forbidden for a program that this process starts, and for a connection."""
    _watch()
    _watching.append(True)
    try:
        yield
    finally:
        _watching.clear()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@cache
def profile() -> Profile:
    return load_profile("h200")


def a_host(folder: Path, content: bytes) -> None:
    put(folder / "hosts" / f"{HOST}.json", content)
    host = read_host(folder, HOST)
    assert isinstance(StudyRecords(STUDIES[STUDY], profile(), "quick", HOST, host, []).device_name, str)
    properties_of_host(host)


def records(folder: Path, content: bytes) -> None:
    """Read records, and form the metrics that pages show of them."""
    put(folder / "records" / HOST / f"{STUDY}.jsonl", content)
    read = read_together(Store(folder), STUDY, HOST).records
    scale = scale_to_show(read)
    results = StudyRecords(
        STUDIES[STUDY], profile(), scale or "quick", HOST, {"cpu": "a CPU"}, at_scale(read, scale) if scale else []
    )
    for trial in results.by_trial:
        configuration_name(trial)
    for record in results.records:
        record.line()
        for metric in METRICS:
            if metric_of(results, record, metric) is None:
                why_missing(results, record, metric)


def packed_records(folder: Path, content: bytes) -> None:
    put(folder / "records" / HOST / f"{STUDY}.jsonl.gz", content)
    Store(folder).read(STUDY, HOST)


def series(folder: Path, content: bytes) -> None:
    put(folder / "telemetry" / HOST / f"{STUDY}.parquet", content)
    try:
        frame = SeriesStore(folder, HOST, STUDY).read()
    except OSError as error:
        raise UserError(str(error)) from None  # as `Results.series` does; a library may ask for too much memory
    assert list(frame.columns) == list(COLUMNS)
    assert all(frame[name].dtype.kind in "fiu" for name in ("pass", "t_s", "value"))


def imagenet32(folder: Path, content: bytes) -> None:
    file = put(folder / "archive" / "val_data", content)
    batch = _load(file, "npz" if content.startswith(b"PK") else "pickle")
    if {"data", "labels"} <= set(batch):
        images = _check_images(file, batch["data"])
        assert _check_labels(file, batch["labels"], len(images)).shape == images.shape[:1]


def newswires(folder: Path, content: bytes) -> None:
    for split in ("train", "val"):
        list(reuters.source(put(folder / split / "reuters.npz", content)).chunks(split))


def image(folder: Path, content: bytes) -> None:
    assert read_image(put(folder / "images" / "a.JPEG", content)).shape == (3, 224, 224)


def stored_set(folder: Path, content: bytes) -> None:
    for form in FORMS:
        put(folder / form / "index.json", content)
        (folder / form / "a.tar").write_bytes(b"tar")
        try:
            opened = open_stored(folder, form)
        except UserError:
            continue
        assert opened.folder.is_absolute() and all(path.is_relative_to(opened.folder) for path in opened.files)


READERS: dict[str, Callable[[Path, bytes], None]] = {
    "host": a_host,
    "records": records,
    "packed_records": packed_records,
    "series": series,
    "imagenet32_npz": imagenet32,
    "imagenet32_pickle": imagenet32,
    "reuters": newswires,
    "jpeg": image,
    "stored_index": stored_set,
}


@cache
def corpus(name: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((ROOT / "tests" / "corpus" / name).iterdir()))


def attempt(read: Callable[[Path, bytes], None], content: bytes) -> None:
    """Read a file. Assert that an error is one printable sentence that did not begin with a lack of memory."""
    with tempfile.TemporaryDirectory() as folder, limited_memory(), nothing_started():
        try:
            read(Path(folder), content)
        except LabkitError as error:
            message, cause = str(error), error.__cause__
            assert message and message.isprintable() and len(message) < 2_100
            while cause is not None:
                assert not isinstance(cause, MemoryError), message
                cause = cause.__cause__


PIECES = (b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"[" * 500, b'{"a":' * 300, b"9" * 5000, b"\x00", b"\x1b[2J")
CALL = b"cos\nsystem\n(S'true'\ntR."
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 2**63, 10**400, 1e308, 5e-324, float("nan"), float("inf"), "", "a" * 3000, "\x00"),
    *("\ud800", "../../x", "/etc/passwd", "<b>", "fp32", "train", [], {}, [[]], [None], {"a": 1}, [0] * 50),
)


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a few changes of bytes: set, cut, or replaced by a piece that has broken some reader."""
    new = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(new)))
        new[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8) | st.sampled_from((*PIECES, CALL)))
    return bytes(new)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container within a JSON value with each of its keys."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else []):
        yield value, key
        yield from places(child)


@st.composite
def changed_values(draw: st.DrawFn, values: Any) -> bytes:
    """Draw JSON lines in which a few values are others or missing."""
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(places(values))))
        if isinstance(parent, dict) and draw(st.booleans()):
            del parent[key]
        else:
            parent[key] = deepcopy(draw(st.sampled_from(VALUES)))
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


@st.composite
def changed_part(draw: st.DrawFn, parts: dict[str, bytes]) -> bytes:
    """Draw a zip archive in which one part is changed and its checksum is that of the change."""
    name, file = draw(st.sampled_from(sorted(parts))), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in parts.items():
            archive.writestr(part, draw(changed_bytes(content)) if part == name else content)
    return file.getvalue()


@st.composite
def changed(draw: st.DrawFn, name: str) -> bytes:
    """Draw a change of a file of the corpus: of its bytes, or of what it holds."""
    content = draw(st.sampled_from(corpus(name)))
    if draw(st.booleans()):
        try:
            if content.startswith(b"PK"):
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    return draw(changed_part({part: archive.read(part) for part in archive.namelist()}))
            if name in ("host", "records", "stored_index"):
                lines = [content] if name != "records" else content.splitlines()
                return draw(changed_values([json.loads(line) for line in lines]))
        except (ValueError, zipfile.BadZipFile, IndexError):  # a damaged file of the corpus
            pass
    return draw(changed_bytes(content))


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_the_corpus_gives_a_value_or_one_sentence(name: str) -> None:
    for content in corpus(name):
        attempt(READERS[name], content)


@pytest.mark.parametrize("name", READERS)
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_file_gives_a_value_or_one_sentence(name: str, data: st.DataObject) -> None:
    attempt(READERS[name], data.draw(changed(name)))


@pytest.mark.parametrize("kind", ["blocks", "epochs", "queries", "scored", "telemetry", "trace"])
def test_a_record_that_lacks_a_field_of_its_trial_gives_values_or_one_sentence(kind: str) -> None:
    """A trial has fifty fields, so that random changes seldom hit the one that a reader takes for granted."""
    record = json.loads((ROOT / "tests" / "corpus" / "records" / f"{kind}.jsonl").read_text().splitlines()[0])
    for name in record["trial"]:
        without = {key: value for key, value in record["trial"].items() if key != name}
        attempt(records, json.dumps({**record, "trial": without}).encode())


def _fill(_folder: Path, _content: bytes) -> None:
    try:
        bytearray(2**40)
    except MemoryError as error:
        raise UserError("refused") from error


def _start(_folder: Path, _content: bytes) -> None:
    import subprocess

    subprocess.run(["true"])


@pytest.mark.parametrize(
    ("read", "raised"), [(_fill, AssertionError), (_start, Forbidden), (lambda *_: {}[1], KeyError)]
)
def test_an_attempt_finds_each_fault(read: Callable[[Path, bytes], None], raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        attempt(read, b"")
