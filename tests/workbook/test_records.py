"""Tests of records: the fields of a line, and files that survive power loss, packing and concurrent writers."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabkitError
from labkit.telemetry.summary import EnergyWindow, Flagged, Gap, Statistic, Telemetry, Window
from workbook.paths import ROOT
from workbook.records import (
    PROTOCOL,
    SCHEMA,
    Blocks,
    Planned,
    Process,
    Record,
    Status,
    parse_line,
    short_hash,
)
from workbook.records import store as record_store
from workbook.records.store import Store
from workbook.trials.trial import Trial

STUDY = "01_training"
HOST = "0123456789ab"
BLOCKS = Blocks(
    steps_per_block=2,
    images_per_step=64,
    host_s=[0.1, 0.3],
    device_s=[0.09, 0.1],
    warmup_s=[1.0, 0.2],
    warmup_steps=[1, 2],
    steady=True,
    stopped_by="time",
    loss=[2.5, None],
    warmup_loss=[7.0, 3.0],
)
TELEMETRY = Telemetry(
    status="ok",
    windows={
        "timed": Window(
            start_s=0.0,
            length_s=1 / 3,
            sources={"gpu0": {"power_w": Statistic(mean=1 / 3, low=0.1, high=0.5, n=3)}},
            gap_s={"gpu0": 0.125},
        )
    },
    energy=[EnergyWindow(start_s=0.0, length_s=1 / 3, images=64, energy_j={"gpu0": 1 / 7, "gpu1": None})],
    energy_method={"gpu0": "counter"},
    flagged=[Flagged(why="below clock", source="gpu0", blocks=[1])],
    gaps=[Gap(source="gpu0", metrics=["power_w"], start_s=0.1, length_s=0.125, reason="GPU is lost")],
    missing={"gpu0": {"occupancy": "no GPM"}},
)
_minutes = itertools.count()


def record(
    *,
    batch: int = 64,
    number: int = 1,
    status: str = "ok",
    scale: str = "smoke",
    host: str = HOST,
    torch: str = "2.11",
    plan: tuple[int, ...] = (),
    passes: int = 1,
    **other: Any,
) -> Record:
    """Return a record, started 1 min after the record before. `plan` holds the batches of the trials of its pass."""
    fields = {"batch": batch} | {name: other.pop(name) for name in list(other) if name in Trial.__dataclass_fields__}
    trial = Trial(**fields)
    keys = [short_hash(Trial(**(fields | {"batch": size})).key) for size in plan or (batch,)]
    minute = next(_minutes)
    values: dict[str, Any] = {
        "study": STUDY,
        "scale": scale,
        "key": trial.key,
        "trial": trial.as_dict(),
        "pass_number": number,
        "planned": Planned(passes=dict.fromkeys(keys, passes), order_seed=7),
        "process": Process(id="p", position=0, startup_s=1.0),
        "host": host,
        "devices_used": 1,
        "versions": {"torch": torch, "python": "3.11"},
        "status": status,
        "reason": None if status == "ok" else "because",
        "started_at": f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00+00:00",
        "wall_s": 1.5,
        "result": BLOCKS if status == "ok" else None,
    }
    return Record(**(values | other))


# ---- the line -------------------------------------------------------------------------------------------------------


def test_parsing_a_line_returns_the_record() -> None:
    for original in (
        record(),
        record(status="oom"),
        record(facts={"stem": "cifar", "share": 1 / 3}, telemetry=TELEMETRY),
        record(telemetry=Telemetry(status="lost", reason="the telemetry process was killed by signal SIGKILL")),
    ):
        assert parse_line(original.line()) == original


@given(times=st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=20), reason=st.text(max_size=40))
def test_a_line_preserves_numbers_and_text_exactly(times: list[float], reason: str) -> None:
    original = record(result=BLOCKS.model_copy(update={"host_s": times}), reason=reason)
    line = original.line()
    assert "\n" not in line
    assert parse_line(line) == original
    assert parse_line(line.encode().decode()).result.host_s == times


def test_phase_trace_of_older_profiled_records_is_read_as_traced_steps() -> None:
    asked = Trial(traced_iterations=5).as_dict()
    profiled = parse_line(record(phases_s={"trace": 2.0, "timed": 1.0}, trial=asked).line())
    assert profiled.phases_s == {"traced_steps": 2.0, "timed": 1.0}
    of_keras = Trial(framework="keras-jax", engine="xla", traced_iterations=5).as_dict()
    for trial, phases in (
        (of_keras, {"trace": 3.0}),
        (Trial().as_dict(), {"trace": 3.0}),  # a preparation of a user's workload
        (asked, {"trace": 3.0, "traced_steps": 2.0}),
    ):
        assert parse_line(record(phases_s=phases, trial=trial).line()).phases_s == phases


def test_a_line_has_the_fields_of_the_contract() -> None:
    contract = (
        "schema protocol study scale key trial pass process host versions status reason started_at result telemetry"
    )
    values = json.loads(record().line())
    assert set(contract.split()) <= set(values)
    assert next(iter(values)) == "schema"
    assert (values["schema"], values["protocol"], values["pass"]) == (SCHEMA, PROTOCOL, 1)
    assert values["result"]["kind"] == "blocks"
    assert values["key"] == record().key
    assert values["trial"] == Trial().as_dict(), "the line holds the whole trial with its defaults"
    assert not {"schema_version", "pass_number"} & set(values)


def test_a_record_has_a_status_of_the_contract() -> None:
    for status in get_args(Status):
        assert record(status=status).is_final == (status not in ("timeout", "crashed", "unsupported"))
    for cause, final in (("never", True), ("version", True), ("here", False), (None, False)):
        assert record(status="unsupported", cause=cause).is_final == final
    with pytest.raises(ValueError, match="status"):
        record(status="failed")


def test_a_failure_tells_its_status_unless_a_correctness_gate_refused_the_trial() -> None:
    assert record(status="oom").failure == "oom: because"
    refused = record(status="crashed").model_copy(update={"reason": "correctness gate: the loss is nan"})
    assert refused.failure == "the correctness check refused it (the loss is nan)"


def test_a_line_of_a_newer_schema_or_without_a_record_is_refused() -> None:
    values = json.loads(record().line())
    with pytest.raises(ValueError, match=f"newer labkit .schema {SCHEMA + 1}, this one reads {SCHEMA}"):
        parse_line(json.dumps(values | {"schema": SCHEMA + 1}))
    for text in (
        "[]",
        "{}",
        "nothing",
        "",
        json.dumps(values | {"colour": "red"}),
        json.dumps(values | {"pass": "1st"}),
    ):
        with pytest.raises(ValueError, match=r"not a record|Expecting value|colour|pass_number"):
            parse_line(text)
    del values["status"]
    with pytest.raises(ValueError, match="status"):
        parse_line(json.dumps(values))


def test_the_rate_includes_the_stall() -> None:
    assert BLOCKS.timed_s == pytest.approx(0.4)
    assert BLOCKS.rate(64) == pytest.approx(2 * 2 * 64 / 0.4)
    assert BLOCKS.rate(None) is None


# ---- the file -------------------------------------------------------------------------------------------------------


def test_a_record_that_could_not_be_read_again_is_not_written(store: Store) -> None:
    store.append(record())
    with pytest.raises(LabkitError, match="an integer of more than 64 bits"):
        store.append(record(batch=2**64))
    assert len(store.read(STUDY, HOST)) == 1


def test_records_are_read_in_the_order_in_which_they_were_written(store: Store) -> None:
    made = [record(batch=batch) for batch in (64, 8, 32)]
    for item in made:
        store.append(item)
    assert store.read(STUDY, HOST) == made
    assert store.path(HOST, STUDY) == store.report / "records" / HOST / f"{STUDY}.jsonl"
    assert store.read("02_batch_size", HOST) == store.read(STUDY, "another") == []
    assert [item for host in store.hosts() for item in store.read(STUDY, host)] == made


def test_a_file_is_parsed_again_only_after_it_changed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(record_store, "parse_line", lambda line: (lines.append(line), parse_line(line))[1])
    first, second = record(batch=1), record(batch=2)
    store.append(first)
    lines.clear()  # a record is parsed before it is written
    store.read(STUDY, HOST).clear()
    assert store.read(STUDY, HOST) == [first] and len(lines) == 1
    store.append(second)
    lines.clear()
    assert store.read(STUDY, HOST) == [first, second] and len(lines) == 2


def test_packed_records_are_smaller_and_are_unpacked_by_the_next_append(store: Store) -> None:
    made = [record(batch=batch) for batch in range(1, 30)]
    for item in made[:-1]:
        store.append(item)
    plain = store.path(HOST, STUDY)
    lines, folder = plain.read_bytes(), plain.parent
    packed = store.pack(HOST, STUDY)
    assert packed.name == f"{STUDY}.jsonl.gz" and packed.stat().st_size < len(lines) / 3
    assert [path.name for path in folder.iterdir()] == [packed.name]
    assert store.path(HOST, STUDY) == packed and store.read(STUDY, HOST) == made[:-1] and store.hosts(STUDY) == [HOST]
    content = packed.read_bytes()
    assert store.pack(HOST, STUDY).read_bytes() == content, "packed already"
    store.append(made[-1])
    assert plain.read_bytes() == lines + made[-1].line().encode() + b"\n" and store.read(STUDY, HOST) == made
    assert [path.name for path in folder.iterdir()] == [plain.name]


def test_interrupted_packing_loses_and_repeats_no_record(store: Store) -> None:
    first, second = record(batch=1), record(batch=2)
    store.append(first)
    plain = store.path(HOST, STUDY)
    lines = plain.read_bytes()
    packed = store.pack(HOST, STUDY)
    plain.write_bytes(lines)  # both files exist, as after interrupted packing or unpacking
    assert store.read(STUDY, HOST) == [first] and store.hosts() == [HOST]
    store.append(second)
    assert store.read(STUDY, HOST) == [first, second] and not packed.exists()


@pytest.mark.parametrize("packed_lines", [1, 3])
def test_of_a_plain_and_a_packed_file_the_longer_counts(store: Store, packed_lines: int) -> None:
    made = [record(batch=batch) for batch in (1, 2, 3, 4)]
    for of_batch in made[:3]:
        store.append(of_batch)
    plain = store.path(HOST, STUDY)
    lines = plain.read_bytes().splitlines(keepends=True)
    plain.write_bytes(b"".join(lines[:packed_lines]))
    store.pack(HOST, STUDY)
    plain.write_bytes(b"".join(lines[: 4 - packed_lines]))
    assert store.read(STUDY, HOST) == made[:3]
    store.pack(HOST, STUDY)
    assert store.read(STUDY, HOST) == made[:3] and not plain.exists()
    store.append(made[3])
    assert store.read(STUDY, HOST) == made


def test_a_plain_and_a_packed_file_with_different_records_are_refused(store: Store) -> None:
    store.append(record(batch=1))
    packed = store.pack(HOST, STUDY)
    plain = packed.with_suffix("")
    plain.write_text(record(batch=2).line() + "\n")
    with pytest.raises(LabkitError, match=rf"{plain} and {packed.name} .*different records"):
        store.read(STUDY, HOST)
    with pytest.raises(LabkitError, match="different records"):
        store.pack(HOST, STUDY)
    assert packed.exists() and plain.exists()


def test_a_whole_last_line_without_its_line_break_is_a_record(store: Store) -> None:
    made = [record(batch=batch) for batch in (1, 2, 3)]
    store.append(made[0])
    store.append(made[1])
    path = store.path(HOST, STUDY)
    path.write_bytes(path.read_bytes()[:-1])
    assert store.read(STUDY, HOST) == made[:2]
    store.append(made[2])
    assert store.read(STUDY, HOST) == made and path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\r\n"], ids=["byte order mark", "CRLF"])
def test_marks_of_another_editor_lose_no_record(store: Store, mark: bytes) -> None:
    made = [record(batch=batch) for batch in (1, 2)]
    store.append(made[0])
    path = store.path(HOST, STUDY)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\n", mark) if mark == b"\r\n" else mark + content)
    store.append(made[1])
    assert store.read(STUDY, HOST) == made


def test_packed_records_can_be_moved_aside_and_a_damaged_pack_is_an_error(store: Store) -> None:
    store.append(record(batch=1))
    packed = store.pack(HOST, STUDY)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(LabkitError, match=rf"{packed} cannot be unpacked .*Restore the file"):
        store.read(STUDY, HOST)
    packed.unlink()
    store.append(record(batch=1))
    store.pack(HOST, STUDY)
    assert store.move_aside(STUDY, HOST, record().scale) == 1
    assert store.read(STUDY, HOST) == [] and store.hosts() == [] and not packed.exists()


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_torn_last_line_is_ignored_and_removed_by_the_next_append(store: Store, keep: int) -> None:
    first, torn, next_one = record(batch=1), record(batch=2), record(batch=3)
    store.append(first)
    path = store.path(HOST, STUDY)
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(torn.line().encode()[:keep])
    assert store.read(STUDY, HOST) == [first]
    store.append(next_one)
    assert store.read(STUDY, HOST) == [first, next_one]
    assert path.read_bytes() == whole + next_one.line().encode() + b"\n"


def test_a_whole_line_that_is_not_a_record_is_an_error_with_its_line_number(store: Store) -> None:
    for batch in (1, 2, 3):
        store.append(record(batch=batch))
    path = store.path(HOST, STUDY)
    good = path.read_text().splitlines(keepends=True)
    for broken in (
        "{}\n",
        "\n",
        good[1].replace('"status":"ok"', '"status":"fine"'),
        good[1].replace(f":{SCHEMA},", ":9,", 1),
    ):
        path.write_text(good[0] + broken + good[2])
        with pytest.raises(LabkitError, match=rf"{path} line 2 .*(Restore the file|update this labkit)"):
            store.read(STUDY, HOST)


def test_a_full_disk_is_an_error_and_loses_no_other_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(record(batch=1))
    write = os.write
    calls = itertools.count()

    def nearly_full(fd: int, data: bytes) -> int:
        if next(calls):
            raise OSError(28, "No space left on device")
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(record_store.os, "write", nearly_full)
    with pytest.raises(OSError, match="No space left"):
        store.append(record(batch=2))
    monkeypatch.setattr(record_store.os, "write", write)
    store.append(record(batch=3))
    assert [item.trial["batch"] for item in store.read(STUDY, HOST)] == [1, 3]


def _append_many(report: Path, batch: int) -> None:
    store = Store(report)
    for number in range(1, 21):
        store.append(record(batch=batch, number=number, reason="x" * 5000))


def test_processes_that_append_concurrently_write_whole_lines(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(store.report, batch)) for batch in (1, 2, 3, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    pairs = [(item.trial["batch"], item.pass_number) for item in store.read(STUDY, HOST)]
    assert sorted(pairs) == sorted(itertools.product((1, 2, 3, 4), range(1, 21)))


def test_moving_a_scale_aside_keeps_every_line(store: Store) -> None:
    made = [record(batch=1), record(batch=2, scale="quick"), record(batch=3), record(batch=4, status="crashed")]
    for item in made:
        store.append(item)
    before = store.path(HOST, STUDY).read_text().splitlines()
    assert store.move_aside(STUDY, HOST, "smoke") == 3
    assert store.read(STUDY, HOST) == [made[1]]
    (aside,) = (store.report / "records" / HOST / "aside").glob("*.jsonl")
    assert aside.read_text().splitlines() == [before[0], before[2], before[3]]
    assert store.move_aside(STUDY, HOST, "smoke") == 0
    assert store.hosts(STUDY) == store.hosts() == [HOST]
    store.move_aside(STUDY, HOST, "quick")
    assert store.hosts(STUDY) == [], "a host whose records were all moved aside is not listed"
    store.append(made[1])
    assert store.read(STUDY, HOST) == [made[1]], "records moved aside are not read"


def test_records_are_read_where_files_cannot_be_locked() -> None:
    """Windows lacks `fcntl`, which only writing needs."""
    script = (
        "import sys; sys.modules['fcntl'] = None; import workbook; print(len(workbook.load('h200', 'power').frame()))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LABKIT_")}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert int(done.stdout or 0) > 0, done.stderr
