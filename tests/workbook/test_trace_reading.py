"""Tests of reading trace files: packed, truncated and broken files, bounded memory, and refusal of other files."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UserError
from tests.traces import (
    ADDITION,
    CATEGORIES,
    CONVOLUTION,
    Event,
    call,
    launched,
    operator,
    rows,
    step,
    text,
    work,
    written,
)
from workbook.trace import Events, UntracedError, read_trace
from workbook.trace import files as reading_module

SOME = [
    step(0, 4),
    operator("aten::conv2d", 0.5, 1.5),
    *launched(CONVOLUTION, 1, 1.5, 3, 11, device=1),
    work("Memcpy HtoD (Pinned -> Device)", 3, 3.5, kind="copy", number=12, stream=8, size=4096),
    work("Memset (Device)", 3.5, 3.75, kind="fill", size=64),
    call("cudaDeviceSynchronize", 3.5, 4, thread=2),
]


def again(events: Events) -> list[Event]:
    """Return the columns as a list of events."""
    kinds = list(CATEGORIES)
    return [
        Event(events.names[name], kinds[code], began, ended, stream, device, number, size)
        for name, code, began, ended, stream, device, number, size in zip(
            events.name.tolist(),
            events.code.tolist(),
            events.began_s.round(6).tolist(),
            events.ended_s.round(6).tolist(),
            events.stream.tolist(),
            events.device.tolist(),
            events.correlation.tolist(),
            np.maximum(events.bytes, 0).tolist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "packed_without_saying_so.json"])
def test_times_of_events_count_from_the_first_event(name: str, tmp_path: Path) -> None:
    file = written(SOME, tmp_path / name)
    if name.startswith("packed"):
        file.write_bytes(gzip.compress(file.read_bytes()))
    events = read_trace(file)
    assert again(events) == SOME
    assert events.notes == ()


def test_a_bare_list_of_rows_is_a_trace_too(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows(SOME)))
    assert again(read_trace(file)) == SOME


def test_old_and_new_names_of_a_category_are_the_same_kind(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    row = {"ph": "X", "name": "gemm", "ts": 5, "dur": 1, "tid": "stream 7", "args": {"external id": 3}}
    file.write_text(json.dumps({"traceEvents": [{**row, "cat": "Kernel"}, {**row, "cat": "kernel"}]}))
    assert read_trace(file).are("kernel").all()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_truncated_file_gives_all_whole_rows_before_the_cut(data: st.DataObject) -> None:
    whole = text(SOME * 3)
    cut = data.draw(st.integers(whole.index('"traceEvents": [') + 16, whole.rindex('"traceName"') - 10))
    chunk = data.draw(st.sampled_from([64, 1000, 1 << 20]))
    packed = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_module, "CHUNK_BYTES", chunk)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cut.json"
            file.write_bytes(gzip.compress(whole[:cut].encode()) if packed else whole[:cut].encode())
            # Count the events that end before the cut: each row of an event has `"ph": "X"` and ends with a brace.
            ended = [at for at in range(len(whole)) if whole.startswith("\n    }", at) and at + 6 <= cut]
            bounds = [whole.rfind("\n    {", 0, at) for at in ended]
            expected = sum('"ph": "X"' in whole[begin:end] for begin, end in zip(bounds, ended, strict=True))
            if expected == 0:
                with pytest.raises(UntracedError, match="no event"):
                    read_trace(file)
            else:
                events = read_trace(file)
                assert again(events) == (SOME * 3)[:expected]
                assert len(events.notes) == 1 and f" {expected} events" in events.notes[0]


def test_a_truncated_packed_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    file = tmp_path / "cut.json.gz"
    file.write_bytes(gzip.compress(text(SOME * 2_000).encode())[:-2_000])
    events = read_trace(file)
    assert len(SOME) < len(events) < 2_000 * len(SOME)
    assert f" {len(events)} events" in events.notes[0]


def test_broken_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    nameless = [
        {"ph": "X", "cat": "kernel", "ts": 1},
        {"ph": "X", "cat": "kernel", "name": "a", "ts": "x", "dur": 1},
        {"ph": "X", "cat": "gpu_memcpy", "name": "b", "ts": 5e12, "dur": 1, "tid": 7, "args": {"bytes": "many"}},
        7,
    ]
    file.write_text(json.dumps({"traceEvents": [*nameless, *rows(SOME)]}))
    events = read_trace(file)
    assert again(events) == SOME
    assert len(events.notes) == 1 and events.notes[0].startswith("3 rows")


@pytest.mark.parametrize(
    "other",
    [{"name": 3}, {"args": "x"}, {"dur": -3}, {"dur": 1e400}, {"ts": math.nan}, {"dur": "long"}],
    ids=lambda other: json.dumps(other),
)
def test_an_invalid_row_is_left_out_in_any_place(other: dict[str, Any], tmp_path: Path) -> None:
    broken = {"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 1, "tid": 7, **other}
    for place, file in enumerate((tmp_path / "first.json", tmp_path / "last.json")):
        good = rows(SOME)
        file.write_text(json.dumps({"traceEvents": [*good, broken] if place else [broken, *good]}))
        events = read_trace(file)
        assert again(events) == SOME
        assert "1 rows" in events.notes[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"no trace at all", "is no JSON"),
        (b'{"schemaVersion": 1}', "has no traceEvents"),
        (b'{"traceEvents": []}', "holds no event"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "holds no event"),
        (b'{"traceEv', "has no traceEvents"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"given\.json {says}.*export_chrome_trace") as refused:
        read_trace(file)
    assert str(refused.value).count(". ") == 0


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.json .*No such file"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(UserError, match="Is a directory"):
        read_trace(tmp_path)


def test_rows_do_not_stay_in_memory(tmp_path: Path) -> None:
    """20,000 events with long arguments take the memory of their numbers, not of their text."""
    import tracemalloc

    file = tmp_path / "long.json"
    row = {"ph": "X", "cat": "cpu_op", "name": ADDITION, "ts": 1, "dur": 1, "tid": 1, "args": {"Dims": "x" * 1000}}
    file.write_text(json.dumps({"traceEvents": [row] * 20_000}))
    tracemalloc.start()
    events = read_trace(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(events) == 20_000
    assert peak < 12e6 < file.stat().st_size / 2
