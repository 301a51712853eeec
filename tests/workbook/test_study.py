"""Tests of an open study: its data sets, devices, CPU and nodes, and the checks of its plan."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet
from labkit.errors import UserError
from tests.faulty.campaign import HOST
from tests.workbook.made_records import blocks
from tests.workbook.test_reuters_file import sound, write
from workbook import study
from workbook.hardware.host import write_host
from workbook.records import short_hash
from workbook.records.store import Store
from workbook.results import REPORT_VARIABLE, Results, reports_folder
from workbook.runner import measure
from workbook.runner.nodes.allocation import Nodes
from workbook.studies import trust
from workbook.study import OpenStudy, open_study
from workbook.trials.trial import NO_DATA, RETIRED, Trial, measured, trial_from_dict


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStudy:
    """Return a study of profile cpu, opened in mode plan, so that its data sets are known."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    return open_study("02_batch_size", hw="cpu", scale="smoke", mode="plan", host=HOST)


def test_trials_that_name_the_digits_carry_their_checksum_and_classes(planned: OpenStudy) -> None:
    (own,), (digits,), (named,) = (planned.trials(**about) for about in ({}, {"data": "digits"}, {"data": "own"}))
    assert (own.data, own.classes, own.data_checksum) == ("synthetic32", 1000, planned.images.checksum)  # type: ignore[union-attr]
    assert (digits.data, digits.classes, digits.data_checksum) == ("digits", 10, planned.digits.checksum)  # type: ignore[union-attr]
    assert own.data_checksum != digits.data_checksum and named == own


def test_a_gpu_profile_has_both_devices_and_a_cpu_profile_one() -> None:
    by_name = {hw: open_study("06_cpu_vs_gpu", hw=hw, mode="render", host=HOST) for hw in ("h200", "cpu")}
    assert {hw: lab.devices for hw, lab in by_name.items()} == {"h200": ("cuda", "cpu"), "cpu": ("cpu",)}
    lab = by_name["h200"]
    assert [trial.device for trial in lab.trials(device=list(lab.devices))] == ["cuda", "cpu"]
    sizes = {
        trial.device: trial.size
        for device in lab.devices
        for trial in lab.ceilings(device)
        if trial.workload == "matmul"
    }
    assert sizes["cuda"] > sizes["cpu"], "each device has its own ceilings"
    for device in lab.devices:
        peaks = {trial.workload: trial for trial in lab.ceilings(device)}
        assert set(peaks) == {"matmul", "memory_copy", "launch_rate"} and peaks["launch_rate"].size > 0


def test_the_cpu_is_this_machines_when_measuring_and_the_recorded_hosts_when_rendering() -> None:
    recorded = replace(HOST, id="f" * 12, cpu_cores=16, cpu_features=("amx_bf16",))
    store = Store(reports_folder() / "h200")
    write_host(recorded, store.report)
    store.append(blocks("06_cpu_vs_gpu", Trial(), 1, 100.0, host=recorded.id))
    lab = open_study("06_cpu_vs_gpu", hw="h200", mode="render", host=HOST)
    assert lab.cpu == (16, ("amx_bf16",)) and lab.thread_counts("powers") == [1, 2, 4, 8, 16]
    elsewhere = open_study("06_cpu_vs_gpu", hw="h200", mode="plan", host=HOST)
    assert elsewhere.cpu == lab.cpu, "a plan for a machine that is not this one"
    here = open_study("06_cpu_vs_gpu", hw="cpu", mode="plan", host=HOST)
    assert here.cpu == (2, ()) and here.thread_counts("powers") == [1, 2]


def test_the_nodes_are_those_of_the_job_when_measuring_and_the_recorded_when_rendering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NODEID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    assert open_study("03_multi_gpu", hw="h200", mode="render", host=HOST).nodes == 1, "no records"
    recorded = replace(HOST, id="f" * 12)
    store = Store(reports_folder() / "h200")
    write_host(recorded, store.report)
    for trial in (Trial(devices=2), Trial(devices=4, nodes=2)):
        store.append(blocks("03_multi_gpu", trial, 1, 100.0, host=recorded.id))
    assert open_study("03_multi_gpu", hw="h200", mode="render", host=HOST).nodes == 2
    assert open_study("03_multi_gpu", hw="h200", mode="plan", host=HOST).nodes == 1, "nodes of a new measurement"
    monkeypatch.setattr(study, "nodes_here", lambda: Nodes(4))
    assert open_study("03_multi_gpu", hw="h200", mode="plan", host=HOST).nodes == 4
    assert open_study("03_multi_gpu", hw="h200", mode="render", host=HOST).nodes == 2


def test_a_data_set_is_opened_once(planned: OpenStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def count(name: str, scale: str, real: object = study.data_at_scale) -> DataSet:
        opened.append(name)
        return real(name, scale)  # type: ignore[operator, no-any-return]

    monkeypatch.setattr(study, "data_at_scale", count)
    for _ in range(3):
        planned.trials(data="digits")
        planned.trials(data=NO_DATA)
    assert opened == ["digits"], "these trials do not need the report's images"


def test_trials_on_reuters_use_the_users_file_or_synthetic_data_of_its_shape(
    planned: OpenStudy, tmp_path: Path
) -> None:
    (shaped,) = planned.trials(model="mlp512", data="reuters")
    assert planned.documents is not None
    assert (shaped.data, shaped.classes) == ("reuters_shaped", 46)
    assert shaped.data_checksum == planned.documents.checksum
    file = write(tmp_path / "reuters.npz", sound())
    again = open_study("02_batch_size", hw="cpu", scale="smoke", mode="plan", reuters=file, host=HOST)
    (own,) = again.trials(model="mlp512", data="reuters")
    assert (own.data, own.classes) == ("reuters", 46)
    assert own.data_checksum == again.documents.checksum != shaped.data_checksum  # type: ignore[union-attr]


def test_rendering_without_the_hardware_opens_no_data_set() -> None:
    lab = open_study("02_batch_size", hw="h200", mode="render", host=HOST)
    (trial,) = lab.trials(data="digits")
    assert (trial.data, trial.data_checksum, lab.digits) == ("digits", "", None)
    assert lab.documents is None and lab.trials(data="reuters")[0].data_checksum == ""


def test_the_checks_count_planned_configurations_without_records_on_any_images() -> None:
    store = Store(reports_folder() / "h200")
    write_host(HOST, store.report)
    own, gone = Trial(data="mine", data_checksum="of my images", classes=10), Trial(batch=16)
    for trial in (own, gone):
        made = blocks("01_training", trial, 1, 100.0, host=HOST.id)
        keys = [short_hash(trial.key) for trial in (own, gone)]
        store.append(
            made.model_copy(update={"planned": made.planned.model_copy(update={"passes": dict.fromkeys(keys, 3)})})
        )
    lab = open_study("01_training", hw="h200", mode="render", host=HOST)

    def without_records(*planned: Trial) -> list[int]:
        return missing_and_planned(lab.measure(planned))

    assert without_records(Trial(), gone) == [0, 2]
    with pytest.warns(UserWarning, match="2 of 3"):
        assert without_records(Trial(), Trial(batch=32), Trial(batch=128)) == [2, 3]


def missing_and_planned(results: Results) -> list[int]:
    """Return the numbers of planned configurations without records, and of all, as the checks of a page state them."""
    (stated,) = trust.summary(results).query("check.str.endswith('without records')")["result"]
    return [int(number) for number in re.findall(r"\d+", stated)]


def recorded_study(*batches: int) -> OpenStudy:
    """Return a study of the H200, opened on another machine, with a record of ResNet-50 per batch."""
    store, trials = Store(reports_folder() / "h200"), [Trial(batch=batch) for batch in batches]
    write_host(HOST, store.report)
    for trial in trials:
        made = blocks("02_batch_size", trial, 1, 100.0, host=HOST.id)
        keys = [short_hash(planned.key) for planned in trials]
        store.append(
            made.model_copy(update={"planned": made.planned.model_copy(update={"passes": dict.fromkeys(keys, 3)})})
        )
    return open_study("batch_size", hw="h200", host=HOST)


def test_jupyterlab_refuses_trials_of_which_none_has_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = recorded_study(64, 256)
    with pytest.raises(UserError) as caught:
        lab.measure(lab.trials(batch=4))
    assert "2 recorded" in str(caught.value) and "workbook.load('h200', 'batch_size')" in str(caught.value)
    empty = open_study("training", hw="h200", mode="render", host=HOST)
    assert empty.measure(empty.trials(batch=4)).frame().empty, "a study without records has an empty table"
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    assert len(lab.measure(lab.trials(batch=4)).frame()) == 2, "a report shows what is recorded"


def test_jupyterlab_warns_of_trials_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = recorded_study(64, 256)
    assert lab.plan(lab.trials(batch=[64, 4, 8])).caption.count("1 of 3")
    assert lab.plan(lab.trials(batch=[64, 256])).caption.count("2 of 2")
    with pytest.warns(UserWarning, match="2 of 3"):
        lab.measure(lab.trials(batch=[4, 8, 64]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lab.measure(lab.trials(batch=[64, 256]))
        monkeypatch.setenv(REPORT_VARIABLE, "1")
        lab.measure(lab.trials(batch=[4, 8, 64]))


def test_what_follows_the_timed_blocks_makes_no_other_configuration() -> None:
    lab = recorded_study(64, 256)
    asked = [*lab.trials(batch=64, traced_iterations=3), *lab.trials(batch=256, traced_iterations=7)]
    assert lab.plan(asked).caption.count("2 of 2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = lab.measure(asked)
    assert missing_and_planned(results) == [0, 2]


def test_a_configuration_without_a_record_is_told_from_the_nearest() -> None:
    lab = recorded_study(64, 256)
    with pytest.raises(UserError, match=r"batch 64 \(precision='fp32', not 'bf16'\)"):
        lab.measure(lab.trials(batch=64, precision="bf16"))


def test_jupyterlab_warns_of_uneven_blocks_and_the_named_call_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = open_study("batch_size", hw="cpu", host=HOST)
    trials = [Trial(device="cpu", batch=batch) for batch in (64, 256)]
    disturbed = {64: True, 256: False}

    def measured(asked: list[Trial], **_: object) -> None:
        for trial in asked:
            made = blocks("02_batch_size", trial, 1, 100.0, host=HOST.id)
            assert made.blocks
            times = [1.0, 1.5] * 5 if disturbed[trial.batch] else [1.0] * 10
            result = made.blocks.model_copy(update={"host_s": times, "steady": not disturbed[trial.batch]})
            lab.store.append(made.model_copy(update={"result": result}))

    write_host(HOST, lab.store.report)
    monkeypatch.setattr(study, "measure", measured)
    with pytest.warns(UserWarning) as caught:
        lab.measure(trials)
    text = str(caught[0].message)
    assert all(fact in text for fact in ("batch 64", "steady", "40%", "1 of 2")) and "batch 256" not in text
    (call,) = re.findall(r"`(lab\.store\..*?)`", text)
    assert eval(call, {"lab": lab}) == 2
    disturbed[64] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(lab.measure(trials).frame()) == 2
        monkeypatch.setenv(REPORT_VARIABLE, "1")
        disturbed[64] = True
        lab.measure(trials)


def test_a_plan_shows_every_field_in_which_configurations_differ(planned: OpenStudy) -> None:
    def table(**axes: object) -> tuple[list[str], int, int]:
        shown = planned.plan(planned.trials(**axes))
        return list(shown.frame.columns), len(shown.frame), int(shown.caption.split()[0])

    assert table(batch=[4, 8]) == (["execution mode", "batch"], 1, 2)
    assert table() == (["execution mode", "batch"], 1, 1)
    assert table(seed=[0, 1]) == (["seed", "batch"], 2, 2)
    assert table(loader=["indexed", "device"], batch=[4, 8]) == (["execution mode", "loader", "batch"], 2, 4)
    of_queries = table(workload="infer", queries=[0, 10], engine=["eager", "compile"])
    assert of_queries == (["execution mode", "queries", "batch"], 4, 4), "the mode's name covers the engine"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hw": 200}, "'200'; valid: b200, h200"),
        ({"scale": 1}, "'1'; valid: "),
        ({"mode": None}, "'None'; valid: "),
        ({"data": "/nope"}, "'/nope'; valid: "),
    ],
)
def test_a_parameter_that_nothing_fits_is_refused_with_the_valid_ones(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_study("01_training", **{"hw": "h200", **given}, host=HOST)


def test_data_that_is_no_text_is_named_in_the_mistake(planned: OpenStudy) -> None:
    with pytest.raises(UserError, match="'5'"):
        _ = open_study("01_training", hw="cpu", mode="plan", data=5, host=HOST).images  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["plan", "measure"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Trial(), "single configuration"),
        ("strict FP32", "'strict FP32'"),
        (["strict FP32"], "'strict FP32'"),
        (None, "None"),
    ],
    ids=["a trial", "a text", "a list of texts", "nothing"],
)
def test_trials_that_are_no_list_of_trials_are_refused(planned: OpenStudy, name: str, given: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"list of configurations, .*{said}"):
        getattr(planned, name)(given)


def test_an_empty_list_has_no_plan(planned: OpenStudy) -> None:
    with pytest.raises(UserError, match="is empty"):
        planned.plan([])


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in RETIRED.items() for value in values])
def test_a_retired_value_can_be_read_and_is_neither_planned_nor_measured(
    planned: OpenStudy, name: str, value: str
) -> None:
    beside = {"form": "jpeg", "reader": "torch_pil"} if name in ("form", "reader") else {}
    workload = "gan" if name == "constraint" else "train"
    retired = trial_from_dict({**Trial(workload=workload).as_dict(), **beside, name: value})
    said = f"{name}={re.escape(repr(value))} .* give {name}='{re.escape(measured(name)[0])}'"
    with pytest.raises(UserError, match=said):
        planned.plan([Trial(), retired])
    with pytest.raises(UserError, match=said):
        measure([Trial(), retired], study=planned.study.id, session=planned.session)
    assert not planned.store.report.exists() and getattr(retired, name) == value
