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
from typing import NamedTuple

import pytest

from labkit.errors import LabkitError, UserError
from labkit.hardware.profile import Profile
from labkit.places import ROOT
from labkit.records.selection import is_complete
from labkit.records.store import Store
from labkit.report import plan
from labkit.run import Outcome, estimate_s, order_of_pass, process, runner
from labkit.run.lock import lock_path, only_measurement
from labkit.run.plan import (
    CALIBRATE_S,
    CAPTURED_BEFORE_S,
    COMPILE_IN_KERAS_ON_TORCH_S,
    COMPILE_S,
    EPOCH_S,
    IN_KERAS_S,
    REFUSED_S,
    SCORED_PER_S,
    STEP_BEFORE_S,
    TRACE_S,
    TRACED_STEP_S,
    expected_s,
    order_seed,
    planned_s,
    together_s,
)
from labkit.run.protocol import CEILING_SHARE
from tests.commands import apart
from tests.faulty.campaign import HOST, STUDY, between_sound_ones, listed_for, records, run, sound, tiny_profile, trial
from tests.processes import eventually, workers_now

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
    run(between_sound_ones("hang_with_child"), report, limit_s=2.0)  # far less than the 600 s that the trial sleeps
    made = records(report)
    assert [record.status for record in made] == ["ok", "timeout", "ok"]
    assert made[1].reason == "no result within 2 s"
    assert made[0].process.id != made[2].process.id
    assert not workers_now()


# ---- two passes of sound trials -------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A report of two passes, its outcome, and the remaining times that progress showed, by pass."""

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
    for number in (1, 2):
        of_pass = [record for record in made if record.pass_number == number]
        orders[number] = [record.key for record in of_pass]
        again = order_of_pass(SOUND, study=STUDY, scale="smoke", pass_number=number)
        assert orders[number] == [item.key for item in again]
        assert {record.planned.order_seed for record in of_pass} == {order_seed(STUDY, "smoke", number)}
        assert len({record.process.id for record in of_pass}) == 1
    assert orders[1] != orders[2]
    assert made[0].process.id != made[-1].process.id, "each pass is a fresh process"
    assert is_complete(made, "smoke")


def test_a_repeated_call_measures_and_writes_nothing_and_needs_no_lock(twice: Measured) -> None:
    before = {path: path.stat().st_mtime_ns for path in twice.report.rglob("*")}
    with only_measurement(wait_s=0):
        outcome = run(SOUND, twice.report, passes=2)
    assert (outcome.measured, outcome.resumed, outcome.failed) == (0, 8, 0)
    assert {path: path.stat().st_mtime_ns for path in twice.report.rglob("*")} == before


def test_only_missing_trials_are_measured(twice: Measured, report: Path) -> None:
    shutil.copytree(twice.report, report)
    first = Store(report).path(HOST.id, STUDY).read_bytes()
    outcome = run(sound(5), report, passes=2)
    assert (outcome.measured, outcome.resumed) == (2, 8)
    assert Store(report).path(HOST.id, STUDY).read_bytes().startswith(first)
    pairs = [(record.key, record.pass_number) for record in records(report)]
    assert len(pairs) == len(set(pairs)) == 10


def test_a_trial_without_a_framework_imports_none_and_has_no_version(twice: Measured) -> None:
    for made in records(twice.report):
        assert made.framework_version is None
        assert "torch_build" not in made.versions, "the worker imported torch for a trial that needs none"
        assert made.process.startup_s > 0
        assert made.wall_s >= made.phases_s["timed"] + made.phases_s["warmup"] > 0
        assert made.facts["size"] == made.as_trial.size
        assert made.facts["memory_bytes"] > 0


def test_the_estimate_uses_the_records_of_this_host(twice: Measured) -> None:
    timing, made = tiny_profile().timing_at("smoke"), records(twice.report)
    before = estimate_s(SOUND, timing, [], "smoke")
    assert estimate_s(SOUND, timing, made, "smoke") < before
    assert estimate_s(SOUND, timing, made, "full") == before, "records at smoke do not change the estimate at full"
    assert estimate_s([], timing, [], "smoke") == 0


def test_the_remaining_time_uses_the_pass_before_and_not_the_plan(twice: Measured) -> None:
    timing = tiny_profile().timing_at("smoke")
    planned = together_s(SOUND, expected_s(SOUND, timing, [], "smoke"))
    assert twice.left_s["pass 1/2"][0] == pytest.approx(2 * planned), "at first, the plan of both passes"
    first = [record for record in records(twice.report) if record.pass_number == 1]
    expected = together_s(SOUND, expected_s(SOUND, timing, first, "smoke"))
    assert expected < planned
    assert twice.left_s["pass 2/2"][0] == pytest.approx(expected), "the plan's error is not carried over"


def test_the_order_depends_on_study_scale_and_pass() -> None:
    trials = sound(12)
    cases = itertools.product(("01_training", "02_batch_size"), ("smoke", "quick"), (1, 2, 3))
    orders = [order_of_pass(trials, study=s, scale=c, pass_number=n) for s, c, n in cases]
    assert len({tuple(item.size for item in order) for order in orders}) == len(orders)
    assert all(sorted(item.size for item in order) == list(range(1, 13)) for order in orders)


def test_records_of_another_scale_or_version_do_not_count(report: Path) -> None:
    trials = [replace(item, framework="jax") for item in sound(1)]  # by name only: the worker does not import JAX
    assert run(trials, report).measured == 1
    unconcerned = replace(HOST, packages={**HOST.packages, "torch": "3.0"}, commit="abc", driver="999")
    assert run(trials, report, host=unconcerned).measured == 0, "an upgrade of another framework does not matter"
    upgraded = replace(HOST, packages={**HOST.packages, "jax": "0.8.0"})
    assert run(trials, report, host=upgraded).measured == 1
    assert run(trials, report, host=upgraded, scale="quick").measured == 1


def test_a_crashed_trial_is_retried_and_an_unsupported_one_is_not(report: Path) -> None:
    both = [trial("raises"), trial("unsupported")]
    first = run(both, report)
    assert (first.measured, first.failed) == (2, 1)
    second = run(both, report)
    assert (second.measured, second.resumed, second.failed) == (1, 1, 1)
    assert records(report)[2].as_trial.workload == "tests.faulty.raises"


def test_a_list_that_names_a_trial_twice_is_refused(report: Path) -> None:
    with pytest.raises(LabkitError, match="twice"):
        run([*sound(2), *sound(1)], report)
    assert not report.exists()


def with_a_timing_of_its_own(**other: float) -> Profile:
    """Return the tiny profile with a separate timing for STUDY."""
    profile = tiny_profile()
    own = profile.timing["smoke"].model_copy(update={"passes": None, **other})
    return profile.model_copy(update={"timing_of": {STUDY: {"smoke": own}}})


def test_a_study_runs_with_the_profiles_timing_of_that_study(report: Path) -> None:
    profile, store = with_a_timing_of_its_own(limit_s=1.0), Store(report)
    runner.measure([trial("hang")], study=STUDY, scale="smoke", profile=profile, host=HOST, store=store)
    assert [record.reason for record in records(report)] == ["no result within 1 s"], "instead of the scale's 30 s"


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
        runner.measure(trials, study=STUDY, scale="smoke", profile=tiny_profile(), host=HOST, store=Store(report))
    assert asked.value.args == (one_device,)


def test_a_study_is_planned_with_the_profiles_timing_of_that_study(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "planned_trials", lambda *_: sound(1))

    def planned(study: str) -> plan.StudyPlan:
        profile = with_a_timing_of_its_own(timed_s=100.0, limit_s=1000.0)
        parameters = {"scale": "smoke"}
        return plan.plan_study(study, profile=profile, host=HOST, store=Store(report), parameters=parameters)

    longer_s = planned(STUDY).seconds - planned("04_power").seconds
    assert longer_s == pytest.approx(CEILING_SHARE * (100 - 0.03)), "a trial without images takes a share of the time"
    assert planned(STUDY).timeout_s - planned("04_power").timeout_s == pytest.approx(1000 - 30)


def test_compiling_and_training_epochs_are_planned() -> None:
    timing = tiny_profile().timing_at("smoke")

    def planned(**fields: object) -> float:
        return estimate_s([replace(trial(), **fields)], timing, [], "smoke")  # type: ignore[arg-type]

    assert planned(engine="compile+graph") == planned(engine="compile") == planned() + COMPILE_S
    assert planned(engine="graph") == planned(), "capturing is planned to take no time"
    in_keras = planned(framework="keras-torch")
    assert in_keras == pytest.approx(planned() + IN_KERAS_S)
    compiled = planned(framework="keras-torch", engine="compile")
    assert compiled == pytest.approx(in_keras + COMPILE_IN_KERAS_ON_TORCH_S)
    assert planned(epochs=10) - planned(epochs=5) == pytest.approx(5 * EPOCH_S["cpu"])
    on_gpu = planned(epochs=10, device="cuda") - planned(epochs=5, device="cuda")
    assert on_gpu == pytest.approx(5 * EPOCH_S["cuda"])


def test_calibrating_scoring_and_training_weights_are_planned() -> None:
    timing = tiny_profile().timing_at("smoke")

    def planned(**fields: object) -> float:
        return planned_s(replace(trial(), workload="infer", framework="torch", **fields), timing)  # type: ignore[arg-type]

    assert planned(precision="int8") - planned() == pytest.approx(CALIBRATE_S["cpu"])
    on_gpu: dict[str, object] = {"device": "cuda", "weights": "trained"}
    scoring = planned(**on_gpu, scored=20_000) - planned(**on_gpu)
    assert scoring == pytest.approx(20_000 / SCORED_PER_S["cuda"])
    assert planned(**on_gpu) > planned(device="cuda"), "the plan includes training the weights"
    assert planned(weights="trained", scored=50_000) == REFUSED_S, "a CPU without weights refuses at once"


def test_a_trace_and_the_steps_before_it_are_planned() -> None:
    timing = tiny_profile().timing_at("smoke")

    def planned(**fields: object) -> float:
        return planned_s(replace(trial(), workload="train", framework="torch", **fields), timing)  # type: ignore[arg-type]

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
    assert len(lines(report)) < 8
    before = b"".join(lines(report))
    assert before.endswith(b"\n")
    path = Store(report).path(HOST.id, STUDY)
    with path.open("ab") as file:  # a power failure in the middle of a line
        file.write(lines(report)[0][:100])
    last = campaign()
    assert last.wait(timeout=60) == 0
    assert path.read_bytes().startswith(before), "earlier records are kept byte for byte"
    values = [json.loads(line) for line in lines(report)]
    pairs = [(value["key"], value["pass"]) for value in values]
    assert len(pairs) == len(set(pairs)) == 8
    assert all(value["status"] == "ok" for value in values)


def test_a_worker_and_its_children_end_after_their_runner_is_killed(campaign, report: Path) -> None:
    started = campaign("hang_with_child")
    assert eventually(lambda: len(workers_now()) == 4)  # runner, telemetry, worker and the worker's child
    started.kill()  # the runner alone
    started.wait()
    assert eventually(lambda: not workers_now())


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
