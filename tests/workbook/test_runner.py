"""Tests of the runner: a failing trial costs only itself, and a repeated call resumes an interrupted measurement.

Real worker processes run the workloads of `tests.faulty` and import no framework unless a test says so.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from labkit.errors import LabkitError, UserError
from tests.commands import apart
from tests.faulty import COMPILER
from tests.faulty.campaign import HOST, STUDY, between_sound_ones, listed_for, records, run, sound, tiny_profile, trial
from tests.processes import eventually, workers_now
from tests.workbook.made_records import blocks
from workbook.hardware.profile import load_profile
from workbook.paths import ROOT
from workbook.records import Planned, Process, short_hash
from workbook.records.after_traces import TRACES_BEFORE
from workbook.records.selection import at_scale, is_complete, rounds_complete
from workbook.records.shared import read_together
from workbook.records.store import Store
from workbook.report import plan
from workbook.runner import Outcome, estimate_s, order_of_pass, process, runner
from workbook.runner.lock import lock_path, only_measurement
from workbook.runner.plan import (
    BUILT_IN_KERAS_S,
    CALIBRATE_S,
    CAPTURED_BEFORE_S,
    COMPILE_S,
    COMPILED_S,
    EPOCH_S,
    IN_KERAS_S,
    REFUSED_S,
    SCORED_PER_S,
    STEP_BEFORE_S,
    TRACE_S,
    TRACED_STEP_S,
    TUNE_S,
    expected_s,
    order_seed,
    pass_at,
    passes_of,
    planned_s,
    together_s,
    what_is_missing,
)
from workbook.runner.protocol import CEILING_SHARE, Pass
from workbook.session import Session
from workbook.trials.trial import NO_DATA, Trial

pytestmark = pytest.mark.usefixtures("_nothing_is_left_running")


FAULTS = {
    "kill_with_fork": ("crashed", "SIGKILL"),
    "segfault": ("crashed", "SIGSEGV"),
    "raises": ("crashed", "ValueError: this model has no such layer"),
    "gate": ("crashed", "correctness gate: the loss is nan"),
    "odd_facts": ("crashed", "exit code 1"),
    "exhaust_numpy": ("oom", "Unable to allocate"),
    "exhaust": ("oom", "can't allocate memory"),
    "exhaust_kernel": ("oom", "ran out of memory"),
    "unsupported": ("unsupported", "no such engine on this machine"),
}


def test_a_failing_trial_costs_only_itself(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("oom_kill 7\n")
    monkeypatch.setattr(process, "VMSTAT", counters)
    monkeypatch.setenv("LABKIT_TEST_VMSTAT", str(counters))
    first, last, between = *sound(2), [trial(name) for name in (*FAULTS, "noisy")]
    outcome = run(listed_for([first, *between, last]), report)
    made = records(report)
    assert [record.key for record in made] == [item.key for item in (first, *between, last)]
    assert (report / "logs" / f"{STUDY}.log").stat().st_size > 2_000_000, "output goes only to the log"
    for record in made:
        status, reason = FAULTS.get(record.as_trial.workload.removeprefix("tests.faulty."), ("ok", None))
        assert record.status == status, record
        assert record.reason is None if reason is None else reason in (record.reason or "")
        assert (record.result is not None) == (status == "ok")
        assert record.facts[TRACES_BEFORE] == 0
    processes = set()
    for before, after in itertools.pairwise(made):
        processes.add(before.process.id)
        if before.status in ("ok", "unsupported"):  # such trials leave nothing behind: the process goes on
            assert after.process.id == before.process.id
            assert after.process.position == before.process.position + 1
        else:
            assert after.process.id not in processes
            assert after.process.position == 0
    assert outcome.measured == len(made)
    assert outcome.failed == sum(status == "crashed" for status, _ in FAULTS.values())


def test_a_trial_that_hangs_is_ended_with_its_child_processes(report: Path) -> None:
    run(between_sound_ones("hang_with_child"), report, limit_s=10.0)  # far less than the 600 s that the trial sleeps
    made = records(report)
    assert [record.status for record in made] == ["ok", "timeout", "ok"]
    assert made[1].reason == "no result within 10 s"
    assert made[0].process.id != made[2].process.id
    assert not workers_now()


# ---- two passes of sound trials -------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A report of two full and two short passes, its outcome, and the times left that progress showed, by pass."""

    report: Path
    outcome: Outcome
    left_s: dict[str, list[float]]


SOUND = sound(4)


@pytest.fixture(scope="module")
def twice(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder, left_s = tmp_path_factory.mktemp("twice"), dict[str, list[float]]()

    def note(_progress: object, what: str, remaining_s: float) -> None:
        left_s.setdefault(what.partition(",")[0], []).append(remaining_s)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in apart(folder, shared_cache).items():
            patch.setenv(name, value)
        patch.setattr(runner.Progress, "show", note)
        return Measured(folder / "cpu", run(SOUND, folder / "cpu", passes=2), left_s)


def test_each_pass_has_its_own_reproducible_order(twice: Measured) -> None:
    made = records(twice.report)
    orders = {}
    for number in range(1, 5):
        of_pass = [record for record in made if record.pass_number == number]
        orders[number] = [record.key for record in of_pass]
        seed = order_seed(STUDY, "smoke", number, HOST.id)
        again = order_of_pass(SOUND, seed)
        assert orders[number] == [item.key for item in again]
        assert {record.planned.order_seed for record in of_pass} == {seed}
        assert len({record.process.id for record in of_pass}) == 1
    assert orders[1] != orders[2]
    assert made[0].process.id != made[-1].process.id, "each pass is a fresh process"
    assert is_complete(made, "smoke")


def test_a_repeated_call_measures_and_writes_nothing_and_needs_no_lock(twice: Measured) -> None:
    before = {path: path.stat().st_mtime_ns for path in twice.report.rglob("*")}
    with only_measurement(wait_s=0):
        outcome = run(SOUND, twice.report, passes=2)
    assert (outcome.measured, outcome.resumed, outcome.failed) == (0, 16, 0)
    assert {path: path.stat().st_mtime_ns for path in twice.report.rglob("*")} == before


def test_only_missing_trials_are_measured(twice: Measured, report: Path) -> None:
    shutil.copytree(twice.report, report)
    first = Store(report).path(HOST.id, STUDY).read_bytes()
    outcome = run(sound(5), report, passes=2)
    assert (outcome.measured, outcome.resumed) == (4, 16)
    assert Store(report).path(HOST.id, STUDY).read_bytes().startswith(first)
    pairs = [(record.key, record.pass_number) for record in records(report)]
    assert len(pairs) == len(set(pairs)) == 20


def test_the_passes_beyond_the_scales_are_short_and_their_records_say_so(twice: Measured) -> None:
    timing = tiny_profile().timing["smoke"]
    for made in records(twice.report):
        assert made.short == (made.pass_number > 2)
        assert set(made.planned.passes.values()) == {4}
        assert made.timing == {
            "warmup_s": timing.warmup_s,
            "timed_s": timing.timed_s / (2 if made.short else 1),
            "block_s": timing.block_s,
        }


def test_rounds_measure_their_passes_alone_and_together_lose_and_double_nothing(report: Path) -> None:
    assert run(SOUND[:2], report, passes=2, rounds=[1]).measured == 2
    assert rounds_complete(records(report), "smoke") == 1
    assert not is_complete(records(report), "smoke")
    assert run(SOUND[:2], report, passes=2, rounds=[1, 2]).measured == 2
    assert run(SOUND[:2], report, passes=2).measured == 4
    assert run(SOUND[:2], report, passes=2).measured == 0
    pairs = [(record.key, record.pass_number) for record in records(report)]
    assert len(pairs) == len(set(pairs)) == 8
    assert is_complete(records(report), "smoke")


def test_a_configuration_that_another_study_measured_is_not_measured_again(report: Path) -> None:
    assert run(SOUND[:2], report).measured == 2
    assert run(SOUND[:3], report, study="02_batch_size").measured == 1, "only the configuration that is new"
    store = Store(report)
    together, places = read_together(store, "02_batch_size", HOST.id)
    assert sorted(record.key for record in together) == sorted(item.key for item in SOUND[:3])
    assert [places[id(record)] for record in together] == [(STUDY, 1), (STUDY, 2), ("02_batch_size", 1)]
    assert is_complete(together, "smoke")
    assert not is_complete(store.read("02_batch_size", HOST.id), "smoke")
    upgraded = replace(HOST, packages={**HOST.packages, "jax": "9"})
    in_jax = [replace(item, framework="jax") for item in SOUND[:1]]  # by name only: the worker does not import JAX
    assert run(in_jax, report).measured == 1
    assert run(in_jax, report, study="02_batch_size", host=upgraded).measured == 1, "another version counts for none"


def test_what_one_study_measured_replaces_what_another_could_only_try(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, other = [trial("needs_compiler")], "02_batch_size"
    for study in (STUDY, other):
        assert run(wanted, report, study=study).measured == 1
    (tmp_path / COMPILER).write_text("#!/bin/sh\n")
    (tmp_path / COMPILER).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert run(wanted, report).measured == 1
    assert run(wanted, report, study=other).measured == 0, "the other study shows this measurement"
    store = Store(report)
    together, places = read_together(store, other, HOST.id)
    (shown,) = at_scale(together, "smoke")
    assert (shown.status, places[id(shown)]) == ("ok", (STUDY, 2))
    assert is_complete(together, "smoke")


def test_a_gate_that_was_passed_with_this_code_is_left_out(report: Path) -> None:
    gated = [trial("with_gate")]
    assert run(gated, report, passes=2, rounds=[1, 2]).measured == 2
    first, later = records(report)
    assert first.facts["gate"] == {"loss_difference": 0.0, "loss_tolerance": 0.1}
    assert later.facts.get("gate_passed_in") == first.process.id
    assert "gate" not in later.facts
    changed = replace(HOST, source="other code")
    assert run(gated, report, passes=2, scale="quick", rounds=[1], host=changed).measured
    assert records(report)[2].facts.get("gate"), "changed code is compared again"


def test_the_number_of_passes_follows_from_the_trial_alone() -> None:
    on_gpu = {"device": "cuda", "workload": "train"}
    for fields, passes in (
        (on_gpu, 5),
        ({**on_gpu, "engine": "compile"}, 5),
        ({**on_gpu, "engine": "graph"}, 3),
        ({**on_gpu, "engine": "compile+graph"}, 3),
        ({**on_gpu, "epochs": 2}, 3),
        ({"device": "cuda", "workload": "matmul", "data": "none"}, 3),
        ({"device": "cuda", "workload": "launch_rate", "data": "none"}, 5),
        ({"device": "cuda", "workload": "idle", "data": "none"}, 3),
        ({"device": "cpu", "workload": "matmul", "data": "none"}, 4),
        ({"device": "cpu", "workload": "train"}, 4),
        ({"device": "cpu", "workload": "train", "epochs": 2}, 3),
    ):
        trial = Trial(**fields)  # type: ignore[arg-type]
        assert passes_of(trial, 3, "quick") == passes, fields
        assert passes_of(trial, 6, "full") == (6 if passes == 3 else 12), fields
        assert passes_of(trial, 1, "smoke") == 1, "a scale of one pass has no short ones"


def test_a_pass_that_would_measure_nothing_new_is_not_planned() -> None:
    metered, scored = Trial(device="cpu", energy_windows=1), Trial(device="cpu", workload="infer", scored=8)
    assert passes_of(metered, 3, "quick") == 3, "a short pass measures no energy"
    assert [passes_of(scored, full, "full") for full in (3, 6)] == [1, 1], "each pass would score the same images"
    large, small = (Trial(model="alexnet", image_px=224, batch=batch) for batch in (168, 167))
    assert (passes_of(large, 3, "quick"), passes_of(small, 3, "quick")) == (3, 5), "the host delays no such step"
    assert passes_of(replace(large, device="cpu"), 3, "quick") == 4


def test_a_short_pass_leaves_out_what_a_trial_asks_for_beside_its_blocks() -> None:
    asked = Trial(energy_windows=3, traced_iterations=9, traced_s=2, steps_before=4)
    assert asked.only_timed() == Trial()
    predicting = Trial(workload="infer", batch=8)
    assert replace(predicting, queries=5, scored=7).only_timed() == predicting


def test_a_trial_without_a_framework_imports_none_and_has_no_version(twice: Measured) -> None:
    for made in records(twice.report):
        assert made.framework_version is None
        assert "torch_build" not in made.versions, "the worker imported torch for a trial that needs none"
        assert made.process.startup_s > 0
        assert made.wall_s >= made.phases_s["timed"] + made.phases_s["warmup"] > 0
        assert made.facts["size"] == made.as_trial.size
        assert made.facts["memory_bytes"] > 0
        assert (made.fingerprint, made.node) == (HOST.fingerprint, HOST.node)


def test_the_estimate_uses_the_records_of_this_host(twice: Measured) -> None:
    first, made = settings(), records(twice.report)
    before = estimate_s(SOUND, first, [], "smoke")
    assert estimate_s(SOUND, first, made, "smoke") < before
    later = [record for record in made if record.pass_number > 1]
    assert estimate_s(SOUND, first, later, "smoke") < before, "at the pace of later passes"
    assert estimate_s([], first, [], "smoke") == 0


@pytest.mark.parametrize("pace", [0.5, 3.0])
def test_a_scale_without_records_is_planned_at_the_pace_of_round_0_if_that_is_slow(pace: float) -> None:
    """Starting, building and compiling change with the machine; the warm-up and the timed part last as they are set."""
    first, trials = settings(), [Trial(device="cpu", engine=engine, batch=8) for engine in ("eager", "compile")]
    larger = first.model_copy(update={"timing": first.timing.model_copy(update={"warmup_s": 20.0, "timed_s": 100.0})})
    timing = first.timing.model_dump(include={"warmup_s", "timed_s", "block_s"})
    process = Process(id="p", position=0, startup_s=1.5)
    made = [
        blocks(
            STUDY, small, 1, 100.0, scale="smoke", wall_s=planned_s(small, first, pace), timing=timing, process=process
        )
        for small in trials
    ]
    sized = [replace(small, batch=64) for small in trials]
    assert estimate_s(sized, larger, made, "quick") == pytest.approx(
        1.5 + 2 * 120.0 + max(1.0, pace) * sum(planned_s(of, larger) - 120.0 for of in sized)
    )
    failed = [record.model_copy(update={"status": "crashed", "wall_s": 900.0}) for record in made]
    assert expected_s(sized, larger, failed, "quick") == {of.key: planned_s(of, larger) for of in sized}


def test_a_study_begins_with_round_0_until_its_first_round_is_complete(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "planned_trials", lambda _, about: sound(1 if about["scale"] == "smoke" else 2))
    sweeps: dict[str, Any] = {STUDY: {"smoke": {}, "quick": {}}}
    profile = tiny_profile(passes=2).model_copy(update={"sweeps": sweeps})
    session = Session(profile=profile, host=HOST, store=Store(report), scale="quick")

    def planned(force: bool = False, of: Session = session) -> dict[int, int]:
        (study,) = plan.plan_studies([STUDY], session=of, force=force)
        assert bool(study.small) == (0 in study.missing)
        return {number: missing.trials for number, missing in study.missing.items()}

    quick = dict.fromkeys(range(1, 4), 2)
    assert planned() == {0: 1, **quick}
    assert planned(of=replace(session, scale="smoke")) == dict.fromkeys(range(1, 5), 1), "that is the whole report"
    assert planned(of=replace(session, profile=tiny_profile(passes=2))) == quick, "the profile has no small sizes"
    (study,) = plan.plan_studies([STUDY], session=session)
    assert "2 configurations, 6 runs:" in study.line(), "without those of round 0"
    assert "in 4 rounds; a complete site of small sizes after round 0" in plan.line_of_rounds([study])

    def measured(scale: str, trials: list[Trial], status: str = "ok") -> None:
        about: dict[str, Any] = {"scale": scale, "status": status, "host": HOST.id, "versions": {}}
        about["planned"] = Planned(passes={short_hash(of.key): 4 for of in trials}, order_seed=1)
        for of in trials:
            Store(report).append(blocks(STUDY, of, 1, 100.0, **about))

    measured("smoke", sound(1), status="crashed")
    assert planned() == {0: 0, **quick}, "it is not measured again"
    measured("quick", sound(2))
    assert planned() == {**quick, 1: 0}
    assert planned(force=True) == {0: 1, **quick}


def test_the_remaining_time_uses_the_pass_before_and_not_the_plan(twice: Measured) -> None:
    planned = [estimate_s(SOUND, settings(number), [], "smoke") for number in range(1, 5)]
    assert twice.left_s["run 1/4"][0] == pytest.approx(sum(planned)), "at first, the plan of all passes"
    short = [record for record in records(twice.report) if record.pass_number == 3]
    expected = together_s(SOUND, expected_s(SOUND, settings(4), short, "smoke"), settings(4))
    assert expected < planned[3]
    assert twice.left_s["run 4/4"][0] == pytest.approx(expected), "the plan's error is not carried over"


def test_the_order_depends_on_study_scale_pass_and_host() -> None:
    trials = sound(12)
    cases = itertools.product(("01_training", "02_batch_size"), ("smoke", "quick"), (1, 2, 3), ("a", "b"))
    orders = [order_of_pass(trials, order_seed(*case)) for case in cases]
    assert len({tuple(item.size for item in order) for order in orders}) == len(orders)
    assert all(sorted(item.size for item in order) == list(range(1, 13)) for order in orders)


def test_records_of_another_scale_or_version_do_not_count(report: Path) -> None:
    trials = [replace(item, framework="jax") for item in sound(1)]  # by name only: the worker does not import JAX
    assert run(trials, report).measured == 1
    unconcerned = replace(HOST, packages={**HOST.packages, "torch": "3.0"}, commit="abc", driver="999")
    assert run(trials, report, host=unconcerned).measured == 0, "an upgrade of another framework does not matter"
    upgraded = replace(HOST, packages={**HOST.packages, "jax": "0.8.0"})
    assert run(trials, report, host=upgraded).measured == 1
    assert run(trials, report, host=upgraded, scale="quick").measured


def test_a_crashed_trial_is_retried_and_an_impossible_one_is_not(report: Path) -> None:
    both = [trial("raises"), trial("impossible")]
    first = run(both, report)
    assert (first.measured, first.failed) == (2, 1)
    second = run(both, report)
    assert (second.measured, second.resumed, second.failed) == (1, 1, 1)
    assert records(report)[2].as_trial.workload == "tests.faulty.raises"


def test_a_list_that_names_a_trial_twice_is_refused(report: Path) -> None:
    with pytest.raises(LabkitError, match="twice"):
        run([*sound(2), *sound(1)], report)
    assert not report.exists()


@pytest.mark.parametrize(("devices", "one_device"), [((1, 1), True), ((1, 2), False), ((2,), False)])
def test_traffic_between_devices_is_recorded_if_any_trial_has_several_devices(
    report: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], one_device: bool
) -> None:
    class AskedError(Exception):
        pass

    def watch(*_: object, one_device: bool) -> None:
        raise AskedError(one_device)

    monkeypatch.setattr(runner, "Watch", watch)
    trials = [replace(trial("ok"), devices=count, batch=16 * (place + 1)) for place, count in enumerate(devices)]
    with pytest.raises(AskedError) as asked:
        runner.measure(
            trials, study=STUDY, session=Session(scale="smoke", profile=tiny_profile(), host=HOST, store=Store(report))
        )
    assert asked.value.args == (one_device,)


def test_a_configuration_of_two_studies_is_planned_once(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "planned_trials", lambda notebook, _: sound(2 if notebook.stem == STUDY else 3))
    session = Session(profile=tiny_profile(passes=2), host=HOST, store=Store(report), scale="smoke")
    first, second = plan.plan_studies([STUDY, "04_power"], session=session)
    assert (first.pairs, second.pairs) == (8, 12)
    assert {number: of.trials for number, of in first.missing.items()} == dict.fromkeys(range(1, 5), 2)
    assert {number: of.trials for number, of in second.missing.items()} == dict.fromkeys(range(1, 5), 1)
    assert "8 of them measured before or by other studies" in second.line()
    seconds = plan.seconds_of_rounds([first, second])
    assert list(seconds) == [1, 2, 3, 4]
    assert seconds[1] == first.missing[1].seconds + second.missing[1].seconds
    assert "in 4 rounds; a complete site after the first" in plan.line_of_rounds([first, second])


def test_a_plan_names_the_frameworks_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "missing_from", lambda name: ["keras"] if name.startswith("keras") else [])
    trials = [Trial(framework=name) for name in ("torch", "keras-torch", "keras-jax", "keras-jax")]
    told = "; not installed here: Keras on JAX, Keras on PyTorch (`make doctor`)"
    missing = {1: plan.Missing(4, 9.0)}
    assert plan.StudyPlan(STUDY, trials, 4, missing).line().endswith(told)
    assert "installed" not in plan.StudyPlan(STUDY, trials[:1], 1, missing).line()
    assert "installed" not in plan.StudyPlan(STUDY, trials, 4, {}).line(), "nothing is left to run"


def test_a_plan_for_absent_hardware_has_the_times_of_the_host_that_pages_show(report: Path) -> None:
    profile = load_profile("h200").model_copy(update={"timing": tiny_profile().timing})
    wanted, store = Trial(device="cuda", epochs=1), Store(report)
    session = Session(profile=profile, host=HOST, store=store, scale="smoke")
    guess = what_is_missing([wanted], STUDY, session)[1]
    measured = replace(wanted, data="synthetic32", data_checksum="00000000")
    store.append(blocks(STUDY, measured, 1, 100.0, host="f" * 12, scale="smoke", wall_s=500.0))
    elsewhere = what_is_missing([wanted], STUDY, session)[1]
    assert elsewhere == (1, together_s([wanted], {wanted.key: 500.0}, settings(), startup_s=2.0)) != guess


def settings(number: int = 1) -> Pass:
    """Return the settings of a pass of a report with two full passes."""
    session = Session(profile=tiny_profile(passes=2), host=HOST, store=Store(Path()), scale="smoke")
    return pass_at(session, STUDY, number)


def test_a_ceiling_is_planned_with_a_share_of_the_timed_part() -> None:
    longer = settings().model_copy(update={"timing": settings().timing.model_copy(update={"timed_s": 100.0})})
    assert planned_s(trial(), longer) - planned_s(trial(), settings()) == pytest.approx(CEILING_SHARE * (100 - 0.03))


def test_a_users_network_is_planned_with_the_whole_timed_part_and_energy_windows_with_their_length() -> None:
    longer = settings().model_copy(update={"timing": settings().timing.model_copy(update={"timed_s": 100.0})})
    own = Trial(workload="own_training", model="mine", workload_source="00000000", data=NO_DATA)
    assert planned_s(own, longer) - planned_s(own, settings()) == pytest.approx(100 - 0.03)
    for metered in (replace(own, energy_windows=3), replace(trial(), energy_windows=3)):
        assert planned_s(metered, longer) == planned_s(metered, settings()) > planned_s(own, settings()) + 14


def test_kernels_of_quantised_weights_are_planned_to_be_tuned() -> None:
    own = Trial(workload="own_prediction", model="mine", data=NO_DATA, device="cuda", engine="compile+graph")
    seconds = {
        precision: planned_s(replace(own, precision=precision), settings()) for precision in ("bf16", "int8", "fp8")
    }
    assert seconds["int8"] == seconds["fp8"] == pytest.approx(seconds["bf16"] + TUNE_S)


def test_compiling_and_training_epochs_are_planned() -> None:
    def planned(number: int = 1, **fields: object) -> float:
        return estimate_s([replace(trial(), **fields)], settings(number), [], "smoke")  # type: ignore[arg-type]

    assert planned(2, engine="compile") == planned(2) + COMPILED_S
    assert planned(2, framework="keras-torch") == pytest.approx(planned(2) + BUILT_IN_KERAS_S)
    assert planned(engine="compile+graph") == planned(engine="compile") == planned() + COMPILE_S
    assert planned(engine="graph") == planned(), "capturing is planned to take no time"
    in_keras = planned(framework="keras-torch")
    assert in_keras == pytest.approx(planned() + IN_KERAS_S)
    compiled = planned(framework="keras-torch", engine="compile")
    assert compiled == pytest.approx(in_keras + 2 * COMPILE_S)
    assert planned(epochs=10) - planned(epochs=5) == pytest.approx(5 * EPOCH_S["cpu"])
    on_gpu = planned(epochs=10, device="cuda") - planned(epochs=5, device="cuda")
    assert on_gpu == pytest.approx(5 * EPOCH_S["cuda"])


def test_calibrating_scoring_and_training_weights_are_planned() -> None:
    def planned(**fields: object) -> float:
        of_network: dict[str, object] = {"workload": "infer", "framework": "torch", **fields}
        return planned_s(replace(trial(), **of_network), settings())  # type: ignore[arg-type]

    assert planned(precision="int8") - planned() == pytest.approx(CALIBRATE_S["cpu"])
    on_gpu: dict[str, object] = {"device": "cuda", "weights": "trained"}
    scoring = planned(**on_gpu, scored=20_000) - planned(**on_gpu)
    assert scoring == pytest.approx(20_000 / SCORED_PER_S["cuda"])
    assert planned(**on_gpu) > planned(device="cuda"), "the plan includes training the weights"
    assert planned(weights="trained", scored=50_000) == REFUSED_S, "a CPU without weights refuses at once"


def test_a_trace_and_the_steps_before_it_are_planned() -> None:
    def planned(number: int = 1, **fields: object) -> float:
        of_network: dict[str, object] = {"workload": "train", "framework": "torch", **fields}
        return planned_s(replace(trial(), **of_network), settings(number))  # type: ignore[arg-type]

    assert planned(3, traced_iterations=10) == planned(3), "a short pass takes no trace"

    traced = planned(traced_iterations=10)
    assert traced - planned() == pytest.approx(TRACE_S + 10 * TRACED_STEP_S)
    assert planned(traced_iterations=10, steps_before=300) - traced == pytest.approx(300 * STEP_BEFORE_S)
    captured = {"device": "cuda", "engine": "graph", "traced_iterations": 10}
    assert planned(**captured, steps_before=300) - planned(**captured) == pytest.approx(300 * CAPTURED_BEFORE_S)
    assert planned(traced_iterations=10**6, traced_s=20) - planned() == pytest.approx(TRACE_S + 20)


@pytest.fixture
def campaign(report: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts `tests.faulty.campaign` with some workloads in a new process group."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*workloads: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faulty.campaign", str(report), *workloads]
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        return started[-1]

    yield start
    for child in started:
        if child.poll() is None:
            child.kill()
        child.wait()


def lines(report: Path) -> list[bytes]:
    path = Store(report).path(HOST.id, STUDY)
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def test_a_repeated_call_resumes_after_a_kill_and_loses_no_record(campaign, report: Path) -> None:
    first = campaign()
    assert eventually(lambda: len(lines(report)) >= 2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert eventually(lambda: not workers_now())
    assert len(lines(report)) < 16
    before = b"".join(lines(report))
    assert before.endswith(b"\n")
    path = Store(report).path(HOST.id, STUDY)
    with path.open("ab") as file:  # a power failure in the middle of a line
        file.write(lines(report)[0][:100])
    last = campaign()
    assert last.wait() == 0
    assert path.read_bytes().startswith(before), "earlier records are kept byte for byte"
    values = [json.loads(line) for line in lines(report)]
    pairs = [(value["key"], value["pass"]) for value in values]
    assert len(pairs) == len(set(pairs)) == 16
    assert all(value["status"] == "ok" for value in values)


def test_a_worker_and_its_children_end_after_their_runner_is_killed(campaign, report: Path) -> None:
    started = campaign("hang_with_child")
    assert eventually(lambda: len(workers_now()) == 4)  # runner, telemetry, worker and the worker's child
    started.kill()  # the runner alone
    started.wait()
    assert eventually(lambda: not workers_now())


def test_a_worker_that_an_interruption_killed_is_no_record(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "requested", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        run([trial("kill")], report)
    assert not records(report)


def test_a_second_measurement_is_refused_until_the_first_ends(
    campaign, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = campaign("hang")
    assert eventually(lambda: len(lines(report)) >= 1)
    with monkeypatch.context() as impatient:
        impatient.setattr(runner, "only_measurement", functools.partial(only_measurement, wait_s=0.3))
        with pytest.raises(UserError, match=rf"another labkit measurement .*process {first.pid}\b"):
            run(sound(1), tmp_path / "other")
        assert not records(tmp_path / "other")
    first.kill()
    first.wait()
    assert run(sound(1), tmp_path / "other").measured == 1


def test_a_trial_measured_while_waiting_for_the_lock_is_not_measured_again(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_the_other_one():
        monkeypatch.setattr(runner, "only_measurement", only_measurement)
        run(sound(1), report)  # another process measures the same study first
        return only_measurement()

    monkeypatch.setattr(runner, "only_measurement", wait_for_the_other_one)
    outcome = run(sound(2), report)
    pairs = [(record.key, record.pass_number) for record in records(report)]
    assert len(pairs) == len(set(pairs)) == 2
    assert (outcome.measured, outcome.resumed) == (1, 1)


def test_the_lock_is_free_after_a_failed_measurement(report: Path) -> None:
    with pytest.raises(ZeroDivisionError), only_measurement(wait_s=0):
        raise ZeroDivisionError
    with only_measurement(wait_s=0):
        assert lock_path().read_text() == str(os.getpid())


def test_a_worker_that_cannot_start_is_an_error_that_names_its_log(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "psutil.py").write_text("raise ImportError('psutil was built for another Python')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken), prepend=os.pathsep)
    log = report / "logs" / f"{STUDY}.log"
    with pytest.raises(LabkitError, match="psutil was built for another Python") as caught:
        run(sound(1), report)
    assert caught.value.exit_code == 1
    assert str(log) in str(caught.value)
    assert "Traceback" in log.read_text()
    assert not records(report), "no trial gets a record"


def test_a_worker_that_sends_no_hello_is_an_error_that_names_its_log(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "pydantic.py").write_text("import time; time.sleep(600)\n")  # the worker imports it, the sampler does not
    monkeypatch.setenv("PYTHONPATH", str(slow), prepend=os.pathsep)
    monkeypatch.setattr(runner, "STARTUP_LIMIT_S", 1.0)
    with pytest.raises(LabkitError, match=rf"did not start within 1 s; see {report}/logs/{STUDY}.log"):
        run(sound(1), report)
    assert not workers_now()
    assert not records(report)
