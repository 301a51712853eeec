"""Records: a line is a contract, a power loss costs at most the line just written, unlike things are never pooled."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabkitError
from labkit.records import (
    PROTOCOL,
    SCHEMA,
    Blocks,
    Planned,
    Process,
    Record,
    parse_line,
    short_hash,
)
from labkit.records import store as record_store
from labkit.records.observed import EnergyWindow, Flagged, Gap, Statistic, Telemetry, Window
from labkit.records.store import Store
from labkit.trial import Trial

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
    """A record, each made a minute after the one before. `plan` holds the batches of the trials of its pass."""
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
        "planned": Planned(keys=keys, passes=passes, order_seed=7),
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


def test_a_line_gives_back_the_record_it_was_made_of() -> None:
    for one in (
        record(),
        record(status="oom"),
        record(facts={"stem": "cifar", "share": 1 / 3}, telemetry=TELEMETRY),
        record(telemetry=Telemetry(status="lost", reason="the telemetry process was killed by signal SIGKILL")),
    ):
        assert parse_line(one.line()) == one


@given(times=st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=20), reason=st.text(max_size=40))
def test_every_digit_and_every_letter_survives(times: list[float], reason: str) -> None:
    one = record(result=BLOCKS.model_copy(update={"host_s": times}), reason=reason)
    line = one.line()
    assert "\n" not in line
    assert parse_line(line) == one
    assert parse_line(line.encode().decode()).result.host_s == times


def test_the_profilers_phase_of_older_records_is_told_from_the_tracing_of_a_step_to_be_compiled() -> None:
    asked = Trial(traced_iterations=5).as_dict()
    profiled = parse_line(record(phases_s={"trace": 2.0, "timed": 1.0}, trial=asked).line())
    assert profiled.phases_s == {"traced_steps": 2.0, "timed": 1.0}
    of_keras = Trial(framework="keras-jax", engine="xla", traced_iterations=5).as_dict()
    for trial, phases in (
        (of_keras, {"trace": 3.0}),
        (Trial().as_dict(), {"trace": 3.0}),  # a preparation of a workload of one's own
        (asked, {"trace": 3.0, "traced_steps": 2.0}),
    ):
        assert parse_line(record(phases_s=phases, trial=trial).line()).phases_s == phases


def test_the_fields_of_a_line_are_those_of_the_contract() -> None:
    contract = (
        "schema protocol study scale key trial pass process host versions status reason started_at result telemetry"
    )
    values = json.loads(record().line())
    assert set(contract.split()) <= set(values)
    assert next(iter(values)) == "schema"
    assert (values["schema"], values["protocol"], values["pass"]) == (SCHEMA, PROTOCOL, 1)
    assert values["result"]["kind"] == "blocks"
    assert values["key"] == record().key
    assert values["trial"] == Trial().as_dict(), "the trial stands there whole, defaults too"
    assert not {"schema_version", "pass_number"} & set(values)


def test_the_statuses_are_those_of_the_contract() -> None:
    for status in ("ok", "oom", "timeout", "crashed", "unsupported"):
        assert record(status=status).is_final == (status in ("ok", "oom", "unsupported"))
    with pytest.raises(ValueError, match="status"):
        record(status="failed")


def test_a_line_of_a_newer_schema_is_refused_and_so_is_what_is_no_record() -> None:
    values = json.loads(record().line())
    with pytest.raises(ValueError, match=f"newer labkit .schema {SCHEMA + 1}, this one reads {SCHEMA}"):
        parse_line(json.dumps(values | {"schema": SCHEMA + 1}))
    for other in (
        "[]",
        "{}",
        "nothing",
        "",
        json.dumps(values | {"colour": "red"}),
        json.dumps(values | {"pass": "1st"}),
    ):
        with pytest.raises(ValueError, match=r"not a record|Expecting value|colour|pass_number"):
            parse_line(other)
    del values["status"]
    with pytest.raises(ValueError, match="status"):
        parse_line(json.dumps(values))


def test_the_rate_counts_the_stall() -> None:
    assert BLOCKS.timed_s == pytest.approx(0.4)
    assert BLOCKS.rate(64) == pytest.approx(2 * 2 * 64 / 0.4)
    assert BLOCKS.rate(None) is None


# ---- the file -------------------------------------------------------------------------------------------------------


def test_records_come_back_in_the_order_in_which_they_were_written(store: Store) -> None:
    made = [record(batch=batch) for batch in (64, 8, 32)]
    for one in made:
        store.append(one)
    assert store.read(STUDY, HOST) == made
    assert store.path(HOST, STUDY) == store.report / "records" / HOST / f"{STUDY}.jsonl"
    assert store.read("02_batch_size", HOST) == store.read(STUDY, "another") == []
    assert [one for host in store.hosts() for one in store.read(STUDY, host)] == made


def test_packed_records_are_the_same_lines_in_less_space_until_the_next_is_written(store: Store) -> None:
    made = [record(batch=batch) for batch in range(1, 30)]
    for one in made[:-1]:
        store.append(one)
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


def test_packing_that_was_interrupted_costs_and_repeats_nothing(store: Store) -> None:
    first, second = record(batch=1), record(batch=2)
    store.append(first)
    plain = store.path(HOST, STUDY)
    lines = plain.read_bytes()
    packed = store.pack(HOST, STUDY)
    plain.write_bytes(lines)  # both stand: packed or unpacked halfway
    assert store.read(STUDY, HOST) == [first] and store.hosts() == [HOST]
    store.append(second)
    assert store.read(STUDY, HOST) == [first, second] and not packed.exists()


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
def test_a_line_cut_short_by_a_power_loss_is_no_record_and_goes_with_the_next_append(store: Store, keep: int) -> None:
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


def test_a_whole_line_that_is_no_record_is_an_error_with_its_place(store: Store) -> None:
    for batch in (1, 2, 3):
        store.append(record(batch=batch))
    path = store.path(HOST, STUDY)
    good = path.read_text().splitlines(keepends=True)
    for broken in ("{}\n", "\n", good[1].replace('"status":"ok"', '"status":"fine"'), good[1].replace(":1,", ":9,", 1)):
        path.write_text(good[0] + broken + good[2])
        with pytest.raises(LabkitError, match=rf"{path} line 2 .*Restore the file"):
            store.read(STUDY, HOST)


def test_a_disk_that_takes_half_a_line_is_an_error_and_not_a_lost_record(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert [one.trial["batch"] for one in store.read(STUDY, HOST)] == [1, 3]


def _append_many(report: Path, batch: int) -> None:
    store = Store(report)
    for number in range(1, 21):
        store.append(record(batch=batch, number=number, reason="x" * 5000))


def test_processes_that_append_at_once_write_whole_lines(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(store.report, batch)) for batch in (1, 2, 3, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    pairs = [(one.trial["batch"], one.pass_number) for one in store.read(STUDY, HOST)]
    assert sorted(pairs) == sorted(itertools.product((1, 2, 3, 4), range(1, 21)))


def test_moving_a_scale_aside_keeps_everything(store: Store) -> None:
    made = [record(batch=1), record(batch=2, scale="quick"), record(batch=3), record(batch=4, status="crashed")]
    for one in made:
        store.append(one)
    before = store.path(HOST, STUDY).read_text().splitlines()
    assert store.move_aside(STUDY, HOST, "smoke") == 3
    assert store.read(STUDY, HOST) == [made[1]]
    (aside,) = (store.report / "records" / HOST / "aside").glob("*.jsonl")
    assert aside.read_text().splitlines() == [before[0], before[2], before[3]]
    assert store.move_aside(STUDY, HOST, "smoke") == 0
    assert store.hosts(STUDY) == store.hosts() == [HOST]
    store.move_aside(STUDY, HOST, "quick")
    assert store.hosts(STUDY) == [], "a host whose records were all moved aside has none to show"
    store.append(made[1])
    assert store.read(STUDY, HOST) == [made[1]], "what was moved aside is not shown"
