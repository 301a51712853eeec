"""Tests of the choice of records for a page: which attempts, versions, plans, scales and hosts are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.workbook.test_records import STUDY, record
from workbook.records import PROTOCOL, Planned, Process, Record, parse_line, short_hash
from workbook.records.after_traces import launched_slowly
from workbook.records.selection import (
    at_scale,
    done,
    host_to_show,
    is_complete,
    latest,
    rounds_complete,
    scale_to_show,
)
from workbook.records.store import Store


def planning(*keys: str) -> Planned:
    return Planned(passes={short_hash(key): 1 for key in keys}, order_seed=7)


def test_a_later_attempt_replaces_the_earlier_one() -> None:
    first, second_pass, again = record(status="crashed"), record(number=2), record()
    assert latest([first, second_pass, again]) == [second_pass, again]
    assert latest([record(scale="quick"), again]) != [again], "another scale is another measurement"


def test_records_of_another_protocol_never_count() -> None:
    old = record(protocol=PROTOCOL + 1)
    assert latest([old]) == []
    assert done([old], scale="smoke", versions={"torch": "2.11"}) == set()
    assert latest([record(), old])[0].protocol == PROTOCOL, "nor does it replace one of this protocol"
    assert scale_to_show([old]) is None


def test_an_older_protocol_is_shown_until_a_first_round_of_the_new_one_is_complete_and_never_counts() -> None:
    old = [record(batch=batch, plan=(8, 16), protocol=PROTOCOL - 1) for batch in (8, 16)]
    assert at_scale(old, "smoke") == old and scale_to_show(old) == "smoke"
    assert done(old, scale="smoke", versions={"torch": "2.11"}) == set()
    begun = record(batch=8, plan=(8, 16))
    assert at_scale([*old, begun], "smoke") == old
    new = [begun, record(batch=16, plan=(8, 16))]
    assert at_scale([*old, *new], "smoke") == new, "protocols are never pooled"
    assert at_scale([*old, begun], "smoke", keys=[begun.key]) == [begun]
    assert at_scale([begun], "smoke") == [begun], "without a complete round, what there is"


def test_a_scale_is_shown_from_its_first_complete_round_on() -> None:
    first = [record(batch=batch, number=1, plan=(8, 16), passes=3, scale="quick") for batch in (8, 16)]
    assert rounds_complete(first, "quick") == 1
    assert not is_complete(first, "quick")
    assert scale_to_show([record(), *first]) == "quick"
    second = [record(batch=batch, number=2, plan=(8, 16), passes=3, scale="quick") for batch in (8, 16)]
    assert rounds_complete([*first, second[0]], "quick") == 1
    assert rounds_complete([*first, *second], "quick") == 2


def test_a_round_lacks_no_trial_that_has_fewer_passes() -> None:
    planned = Planned(passes={short_hash(record(batch=8).key): 1, short_hash(record(batch=16).key): 2}, order_seed=7)
    made = [record(batch=batch, number=number) for batch, number in ((8, 1), (16, 1), (16, 2))]
    made = [one.model_copy(update={"planned": planned}) for one in made]
    assert rounds_complete(made[:2], "smoke") == 1
    assert is_complete(made, "smoke")


def test_a_host_of_the_newest_protocol_is_shown(store: Store) -> None:
    store.append(record(host="new"))
    store.append(
        record(host="old", protocol=PROTOCOL - 1).model_copy(update={"started_at": "2099-01-01T00:00:00+00:00"})
    )
    assert host_to_show(store, STUDY, None) == "new"


def test_a_host_of_one_round_gives_way_to_one_of_two_rounds_of_an_earlier_protocol(store: Store) -> None:
    planned: dict[str, Any] = {"scale": "quick", "passes": 2}
    store.append(record(host="new", **planned))
    store.append(record(host="old", protocol=PROTOCOL - 1, **planned))
    assert host_to_show(store, STUDY, None) == "new"
    store.append(record(host="old", protocol=PROTOCOL - 1, number=2, **planned))
    assert host_to_show(store, STUDY, None) == "old", "a single run has no interval"
    store.append(record(host="new", number=2, **planned))
    assert host_to_show(store, STUDY, None) == "new"


def test_among_delayed_hosts_two_rounds_of_an_earlier_protocol_come_before_one(store: Store) -> None:
    process = Process(id="later", position=1, startup_s=1.0)
    planned: dict[str, Any] = {"scale": "quick", "passes": 2, "device": "cuda", "process": process}
    for host, protocol, rounds in (("new", PROTOCOL, 1), ("old", PROTOCOL - 1, 2)):
        for number in range(1, rounds + 1):
            made = record(host=host, number=number, protocol=protocol, **planned)
            store.append(made.model_copy(update={"facts": {"busy_step_s": 1e-6}}))
    assert host_to_show(store, STUDY, None) == "old"


def test_a_host_of_more_rounds_gives_way_if_a_trace_delayed_its_launches(store: Store) -> None:
    planned: dict[str, Any] = {"scale": "quick", "passes": 3, "device": "cuda"}
    hosts = (("prompt", 0, 2, "2.11"), ("delayed", 0, 3, "2.10"), ("delayed", 1, 3, "2.11"))
    for host, position, rounds, torch in hosts:
        process = Process(id=host, position=position, startup_s=1.0)
        for number in range(1, rounds + 1):
            made = record(host=host, number=number, process=process, torch=torch, **planned)
            made = made.model_copy(update={"facts": {"busy_step_s": 1e-6}})
            assert launched_slowly(made) is (position == 1)
            store.append(made)
    assert host_to_show(store, STUDY, None) == "prompt", "earlier rounds of another version are not shown"
    store.append(record(host="prompt", batch=8, plan=(8, 64), **planned))
    assert host_to_show(store, STUDY, None) == "prompt", "one run has no interval, but delayed steps have no time"
    store.append(record(host="prompt", batch=8, plan=(8, 16, 32), **planned))
    assert host_to_show(store, STUDY, None) == "delayed", "a plan of more trials has no complete first round"


def test_a_record_of_schema_1_is_read_with_equally_many_passes_for_all_trials() -> None:
    made = record(plan=(8, 16), passes=3)
    values = json.loads(made.line())
    values |= {"schema": 1, "planned": {"keys": list(made.planned.passes), "passes": 3, "order_seed": 7}}
    del values["short"], values["timing"]
    assert parse_line(json.dumps(values)).planned == made.planned


def test_records_before_an_upgrade_are_not_pooled_with_later_ones() -> None:
    old = [record(batch=batch, torch="2.11", plan=(1, 2)) for batch in (1, 2)]
    new = [record(batch=1, torch="2.12", plan=(1, 2))]
    assert at_scale(old + new, "smoke") == new
    assert done(old + new, scale="smoke", versions={"torch": "2.12"}) == {(new[0].key, 1)}


def test_each_framework_has_its_own_version() -> None:
    jax = record(framework="keras-jax", versions={"keras-jax": "0.7", "torch": "2.10"})
    torch = record(torch="2.12")
    together = torch.model_copy(update={"planned": planning(jax.key, torch.key)})
    assert at_scale([jax, together], "smoke") == [jax, together]


def test_trials_of_an_older_plan_are_not_shown_and_do_not_complete_a_study() -> None:
    old = [record(batch=8, plan=(8, 16)), record(batch=16, plan=(8, 16))]
    assert is_complete(old, "smoke")
    new = record(batch=8, plan=(8, 32), number=1)
    assert at_scale([*old, new], "smoke") == [new]
    assert not is_complete([*old, new], "smoke"), "the old batch 16 does not stand in for the new 32"
    assert is_complete([*old, new, record(batch=32, plan=(8, 32))], "smoke")


def test_other_data_make_another_plan() -> None:
    old, new = record(data="synthetic32", data_checksum="aa"), record(data="imagenet32", data_checksum="bb")
    assert at_scale([old, new], "smoke") == [new]
    assert at_scale([old, new], "smoke", keys=[old.key]) == [old], "a plan chosen by its keys is shown"


def test_a_study_is_complete_when_every_trial_of_every_pass_was_tried() -> None:
    pairs = [(batch, number) for number in (1, 2) for batch in (8, 16)]
    made = [record(batch=batch, number=number, plan=(8, 16), passes=2) for batch, number in pairs]
    assert is_complete(made, "smoke")
    assert not is_complete(made, "quick")
    assert not is_complete([], "smoke")
    assert not any(is_complete(made[:index] + made[index + 1 :], "smoke") for index in range(4))
    for status in ("crashed", "timeout", "oom", "unsupported", "withdrawn"):
        failed = record(batch=16, number=2, plan=(8, 16), passes=2, status=status)
        assert is_complete([*made[:3], failed], "smoke"), "a failure is a row: it must not hide the whole scale"


def test_a_crash_is_retried_and_exhausted_memory_is_not() -> None:
    for status in ("crashed", "timeout", "oom", "unsupported", "withdrawn"):
        final = status not in ("crashed", "timeout", "unsupported")
        failed = record(status=status)
        assert (done([failed], scale="smoke", versions={"torch": "2.11"}) == {(failed.key, 1)}) is final


def test_a_trial_is_tried_again_when_the_cause_of_its_refusal_may_have_gone() -> None:
    def is_done(cause: str | None, *, torch: str = "2.11", source: str = "a") -> bool:
        versions = {"torch": "2.11", "source": "a"}
        refused = record(status="unsupported", reason="no", cause=cause, versions=versions)
        return bool(done([refused], scale="smoke", versions={"torch": torch}, source=source))

    assert is_done("never") and is_done("never", source="b"), "no code makes a GPU of a CPU"
    assert is_done("version") and not is_done("version", source="b") and not is_done("version", torch="2.12")
    assert not is_done("here") and not is_done(None), "older records tell no cause"


def test_the_scale_shown_is_the_largest_complete_one() -> None:
    smoke, quick = record(), record(scale="quick", plan=(64, 8))
    assert scale_to_show([]) is None
    assert scale_to_show([smoke, quick]) == "smoke", "quick is incomplete"
    assert scale_to_show([quick]) == "quick"
    assert scale_to_show([smoke, quick, record(batch=8, scale="quick", plan=(64, 8))]) == "quick"
    assert scale_to_show([record(plan=(64, 8)), quick]) == "quick", "the larger of two incomplete scales"


def test_this_host_is_shown_or_else_the_newest_complete_or_else_the_newest(store: Store) -> None:
    assert host_to_show(store, STUDY, None) is None
    store.append(record(host="a"))
    store.append(record(host="b"))
    store.append(record(host="c", plan=(64, 8)))
    assert host_to_show(store, STUDY, "c") == "c"
    assert host_to_show(store, STUDY, "d") == host_to_show(store, STUDY, None) == "b"
    assert host_to_show(store, "02_batch_size", "a") is None
    beginnings = Store(store.report.parent / "begun")
    for host in ("x", "z", "y"):
        beginnings.append(record(host=host, plan=(64, 8)))
    assert host_to_show(beginnings, STUDY, None) == "y"


def test_the_newest_plan_with_all_full_rounds_is_shown_whatever_short_rounds_another_has(store: Store) -> None:
    for host, rounds in (("old", 5), ("new", 3), ("begun", 2)):
        day = {"old": 1, "new": 2, "begun": 3}[host]
        for number in range(1, rounds + 1):
            planned = Planned(passes={short_hash(record().key): rounds}, order_seed=1)
            made = record(host=host, scale="quick", started_at=f"2026-01-0{day}T00:00:00+00:00")
            store.append(made.model_copy(update={"pass_number": number, "planned": planned}))
    assert host_to_show(store, STUDY, None) == "new"


def test_a_host_with_round_0_alone_is_shown_only_there(store: Store) -> None:
    store.append(record(host="measured", scale="quick", started_at="2026-01-01T00:00:00+00:00"))
    store.append(record(host="begun", started_at="2026-02-01T00:00:00+00:00"))
    assert host_to_show(store, STUDY, None) == host_to_show(store, STUDY, "elsewhere") == "measured"
    assert host_to_show(store, STUDY, "begun") == "begun"


def extra(batch: int, scale: str = "smoke") -> Record:
    """Return a record that a user measured in JupyterLab."""
    made = record(batch=batch, scale=scale)
    return made.model_copy(update={"planned": made.planned.model_copy(update={"extra": True})})


def test_a_trial_measured_in_jupyterlab_leaves_the_plan_of_the_report() -> None:
    report, own, larger = [record(batch=batch, plan=(8, 16)) for batch in (8, 16)], extra(4), extra(4, "quick")
    assert at_scale([*report, own], "smoke") == report
    assert is_complete([*report, own], "smoke")
    assert scale_to_show([*report, larger]) == "smoke"
    assert at_scale([*report, own], "smoke", keys=[own.key]) == [own], "the call that measured it shows it"


def test_a_trial_measured_in_jupyterlab_is_shown_where_no_report_measured() -> None:
    own = extra(4, "quick")
    assert scale_to_show([own]) == "quick"
    assert at_scale([own], "quick") == [own]


def test_a_host_with_a_report_comes_before_one_that_measured_in_jupyterlab(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(record().model_copy(update={"host": "rented"}))
    store.append(extra(4).model_copy(update={"host": "laptop"}))
    assert host_to_show(store, STUDY, "laptop") == "rented"
