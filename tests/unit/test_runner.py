"""A trial that fails costs only itself, and whatever ends a measurement, the same call goes on where it stopped.

Real worker processes run `tests.faulty`; none of them imports a framework except where a test says so.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.errors import LabkitError, UserError
from labkit.hardware.profile import Profile
from labkit.places import ROOT
from labkit.records import PROTOCOL
from labkit.records.selection import is_complete
from labkit.records.store import Store
from labkit.report import plan
from labkit.run import estimate_s, order_of_pass, process, runner
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
from tests.faulty.campaign import HOST, STUDY, between_sound_ones, records, run, sound, tiny_profile, trial
from tests.processes import eventually, workers_now

pytestmark = pytest.mark.usefixtures("_nothing_is_left_running")


FAULTS = {
    "kill": ("crashed", "SIGKILL"),
    "kill_with_fork": ("crashed", "SIGKILL"),
    "segfault": ("crashed", "SIGSEGV"),
    "raises": ("crashed", "ValueError: this model has no such layer"),
    "gate": ("crashed", "correctness gate: the loss is nan"),
    "odd_facts": ("crashed", "exit code 1"),
    "exhaust_numpy": ("oom", "Unable to allocate"),
    "exhaust": ("oom", "can't allocate memory"),
    "unsupported": ("unsupported", "no such engine on this machine"),
}


def test_a_trial_that_fails_costs_only_itself(report: Path) -> None:
    outcome = run(between_sound_ones(*FAULTS), report)
    made = records(report)
    assert [record.status for record in made[::2]] == ["ok"] * (len(FAULTS) + 1)
    assert all(record.result and record.reason is None for record in made[::2])
    for before, failed, after in zip(made[::2], made[1::2], made[2::2], strict=False):
        status, reason = FAULTS[failed.as_trial.workload.removeprefix("tests.faulty.")]
        assert failed.status == status, failed
        assert reason in (failed.reason or "")
        assert failed.result is None
        assert failed.process.id == before.process.id
        assert failed.process.position == before.process.position + 1
        if status == "unsupported":  # leaves nothing behind: the same process goes on
            assert after.process.id == failed.process.id
            assert after.process.position == failed.process.position + 1
        else:
            assert after.process.id not in {record.process.id for record in made[: made.index(after)]}
            assert after.process.position == 0
    assert outcome.measured == 2 * len(FAULTS) + 1
    assert outcome.failed == sum(status == "crashed" for status, _ in FAULTS.values())


def test_a_trial_that_hangs_is_ended_with_all_it_started(report: Path) -> None:
    run(between_sound_ones("hang", "hang_with_child"), report, limit_s=3.0)  # and not the 600 s that they sleep
    made = records(report)
    assert [record.status for record in made] == ["ok", "timeout", "ok", "timeout", "ok"]
    assert {record.reason for record in made[1::2]} == {"no result within 3 s"}
    assert len({record.process.id for record in made[::2]}) == 3
    assert not workers_now()


def test_a_kill_by_the_kernel_for_want_of_memory_is_not_taken_for_a_crash(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("oom_kill 7\n")
    monkeypatch.setattr(process, "VMSTAT", counters)
    monkeypatch.setenv("LABKIT_TEST_VMSTAT", str(counters))
    run(between_sound_ones("exhaust_kernel"), report)
    made = records(report)
    assert [record.status for record in made] == ["ok", "oom", "ok"]
    assert "ran out of memory" in (made[1].reason or "")


def test_what_a_trial_prints_is_never_taken_for_a_result(report: Path) -> None:
    run(between_sound_ones("noisy"), report)
    made = records(report)
    assert [record.status for record in made] == ["ok", "ok", "ok"]
    assert all(record.result for record in made)
    assert len({record.process.id for record in made}) == 1
    assert (report / "logs" / f"{STUDY}.log").stat().st_size > 2_000_000


def test_a_trial_that_fails_first_and_one_that_fails_last_end_the_pass_properly(report: Path) -> None:
    two = [trial("raises", size=1), trial("kill", size=2)]
    outcome = run(two, report)
    assert [record.status for record in records(report)] == ["crashed", "crashed"]
    assert outcome.failed == outcome.measured == 2


def test_each_pass_has_an_order_of_its_own_that_can_be_had_again(report: Path) -> None:
    trials = sound(6)
    run(trials, report, passes=2)
    made = records(report)
    orders = {}
    for number in (1, 2):
        of_pass = [record for record in made if record.pass_number == number]
        orders[number] = [record.key for record in of_pass]
        again = order_of_pass(trials, study=STUDY, scale="smoke", pass_number=number)
        assert orders[number] == [one.key for one in again]
        assert {record.planned.order_seed for record in of_pass} == {order_seed(STUDY, "smoke", number)}
        assert len({record.process.id for record in of_pass}) == 1
    assert orders[1] != orders[2] != [one.key for one in trials] != orders[1]
    assert made[0].process.id != made[-1].process.id, "each pass is a fresh process"
    assert is_complete(made, "smoke")


def test_the_order_depends_on_study_scale_and_pass() -> None:
    trials = sound(12)
    cases = itertools.product(("01_training", "02_batch_size"), ("smoke", "quick"), (1, 2, 3))
    orders = [order_of_pass(trials, study=s, scale=c, pass_number=n) for s, c, n in cases]
    assert len({tuple(one.size for one in order) for order in orders}) == len(orders)
    assert all(sorted(one.size for one in order) == list(range(1, 13)) for order in orders)


def test_a_second_call_measures_nothing_and_writes_nothing(report: Path) -> None:
    run(sound(2), report, passes=2)
    before = {path: path.stat().st_mtime_ns for path in report.rglob("*")}
    outcome = run(sound(2), report, passes=2)
    assert (outcome.measured, outcome.resumed, outcome.failed) == (0, 4, 0)
    assert {path: path.stat().st_mtime_ns for path in report.rglob("*")} == before


def test_only_what_is_missing_is_measured(report: Path) -> None:
    run(sound(2), report, passes=1)
    first = Store(report).path(HOST.id, STUDY).read_bytes()
    outcome = run(sound(3), report, passes=2)
    assert (outcome.measured, outcome.resumed) == (4, 2)
    assert Store(report).path(HOST.id, STUDY).read_bytes().startswith(first)
    pairs = [(record.key, record.pass_number) for record in records(report)]
    assert len(pairs) == len(set(pairs)) == 6


def test_records_of_another_scale_host_version_or_protocol_do_not_count(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [replace(one, framework="jax") for one in sound(1)]  # by name only: the worker imports none of it
    assert run(trials, report).measured == 1
    assert run(trials, report).measured == 0
    assert run(trials, report, scale="quick").measured == 1
    other_machine = replace(HOST, id="ba9876543210")
    assert run(trials, report, host=other_machine).measured == 1
    upgraded = replace(HOST, packages={**HOST.packages, "jax": "0.8.0"})
    assert run(trials, report, host=upgraded).measured == 1
    assert run(trials, report, host=upgraded).measured == 0
    unconcerned = replace(upgraded, packages={**upgraded.packages, "torch": "3.0"}, commit="abc", driver="999")
    assert run(trials, report, host=unconcerned).measured == 0, "another framework's upgrade is none of its business"
    monkeypatch.setattr("labkit.records.selection.PROTOCOL", PROTOCOL + 1)
    assert run(trials, report, host=upgraded).measured == 1


def test_a_crash_and_a_hang_are_tried_again_and_what_cannot_run_is_not(report: Path) -> None:
    bad = [trial(name) for name in ("raises", "hang", "exhaust_numpy", "unsupported")]
    first = run([*sound(1), *bad], report, limit_s=3.0)
    assert (first.measured, first.failed) == (5, 2)
    second = run([*sound(1), *bad], report, limit_s=3.0)
    assert (second.measured, second.resumed, second.failed) == (2, 3, 2)
    again = [record.as_trial.workload.rpartition(".")[2] for record in records(report)[5:]]
    assert sorted(again) == ["hang", "raises"]


def test_a_trial_without_a_framework_starts_no_framework_and_has_no_version(report: Path) -> None:
    run(sound(1), report)
    (made,) = records(report)
    assert made.framework_version is None
    assert "torch_build" not in made.versions, "the worker imported torch for a trial that needs none"
    assert made.process.startup_s > 0
    assert made.wall_s >= made.phases_s["timed"] + made.phases_s["warmup"] > 0
    assert made.facts["size"] == 1
    assert made.facts["memory_bytes"] > 0


def test_a_list_that_names_a_trial_twice_is_refused(report: Path) -> None:
    with pytest.raises(LabkitError, match="twice"):
        run([*sound(2), *sound(1)], report)
    assert not report.exists()


def test_the_estimate_follows_this_hosts_records(report: Path) -> None:
    trials, timing = sound(2), tiny_profile().timing_at("smoke")
    before = estimate_s(trials, timing, [], "smoke")
    run(trials, report)
    assert estimate_s(trials, timing, records(report), "smoke") < before
    assert estimate_s(trials, timing, records(report), "full") == before, "smoke says nothing of how long full takes"
    assert estimate_s([], timing, [], "smoke") == 0


def test_what_is_left_follows_the_pass_before_and_not_a_plan_that_was_off(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, timing = sound(3), tiny_profile().timing_at("smoke")
    left: dict[str, list[float]] = {}

    def note(_progress: object, what: str, remaining_s: float) -> None:
        left.setdefault(what.partition(",")[0], []).append(remaining_s)

    monkeypatch.setattr(runner.Progress, "show", note)
    run(trials, report, passes=2)
    planned = together_s(trials, expected_s(trials, timing, [], "smoke"))
    assert left["pass 1/2"][0] == pytest.approx(2 * planned), "nothing is known yet but the plan, twice"
    first = [record for record in records(report) if record.pass_number == 1]
    known = together_s(trials, expected_s(trials, timing, first, "smoke"))
    assert known < planned
    assert left["pass 2/2"][0] == pytest.approx(known), "and the plan's error, of the first pass, is no part of it"


def with_a_timing_of_its_own(**other: float) -> Profile:
    """The tiny profile, in which the study has a timing of its own."""
    profile = tiny_profile()
    own = profile.timing["smoke"].model_copy(update={"passes": None, **other})
    return profile.model_copy(update={"timing_of": {STUDY: {"smoke": own}}})


def test_a_study_runs_with_the_timing_that_the_profile_has_for_it(report: Path) -> None:
    profile, store = with_a_timing_of_its_own(limit_s=1.0), Store(report)
    runner.measure([trial("hang")], study=STUDY, scale="smoke", profile=profile, host=HOST, store=store)
    assert [record.reason for record in records(report)] == ["no result within 1 s"], "and not the scale's 30 s"


@pytest.mark.parametrize(("devices", "one_device"), [((1, 1), True), ((1, 2), False), ((2,), False)])
def test_what_goes_between_devices_is_watched_where_any_trial_has_several(
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


def test_a_study_is_planned_with_the_timing_that_the_profile_has_for_it(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "planned_trials", lambda *_: sound(1))

    def planned(study: str) -> plan.StudyPlan:
        profile = with_a_timing_of_its_own(timed_s=100.0, limit_s=1000.0)
        parameters = {"scale": "smoke"}
        return plan.plan_study(study, profile=profile, host=HOST, store=Store(report), parameters=parameters)

    longer_s = planned(STUDY).seconds - planned("04_power").seconds
    assert longer_s == pytest.approx(CEILING_SHARE * (100 - 0.03)), "of a trial without images"
    assert planned(STUDY).timeout_s - planned("04_power").timeout_s == pytest.approx(1000 - 30)


def test_what_compiles_and_what_trains_epochs_is_planned_to_take_longer() -> None:
    timing = tiny_profile().timing_at("smoke")

    def planned(**fields: object) -> float:
        return estimate_s([replace(trial(), **fields)], timing, [], "smoke")  # type: ignore[arg-type]

    assert planned(engine="compile+graph") == planned(engine="compile") == planned() + COMPILE_S
    assert planned(engine="graph") == planned(), "capturing takes no time to speak of"
    in_keras = planned(framework="keras-torch")
    assert in_keras == pytest.approx(planned() + IN_KERAS_S)
    compiled = planned(framework="keras-torch", engine="compile")
    assert compiled == pytest.approx(in_keras + COMPILE_IN_KERAS_ON_TORCH_S)
    assert planned(epochs=10) - planned(epochs=5) == pytest.approx(5 * EPOCH_S["cpu"])
    on_gpu = planned(epochs=10, device="cuda") - planned(epochs=5, device="cuda")
    assert on_gpu == pytest.approx(5 * EPOCH_S["cuda"])


def test_calibrating_scoring_and_training_weights_are_planned_and_a_refusal_takes_no_time() -> None:
    timing = tiny_profile().timing_at("smoke")

    def planned(**fields: object) -> float:
        return planned_s(replace(trial(), workload="infer", framework="torch", **fields), timing)  # type: ignore[arg-type]

    assert planned(precision="int8") - planned() == pytest.approx(CALIBRATE_S["cpu"])
    on_gpu: dict[str, object] = {"device": "cuda", "weights": "trained"}
    scoring = planned(**on_gpu, scored=20_000) - planned(**on_gpu)
    assert scoring == pytest.approx(20_000 / SCORED_PER_S["cuda"])
    assert planned(**on_gpu) > planned(device="cuda"), "its weights are trained first"
    assert planned(weights="trained", scored=50_000) == REFUSED_S, "a CPU without weights says so at once"


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
    """Starts `tests.faulty.campaign` in a process group of its own: 6 sound trials and the given ones, 3 passes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*workloads: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faulty.campaign", str(report), *workloads]
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait()


def lines(report: Path) -> list[bytes]:
    path = Store(report).path(HOST.id, STUDY)
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def test_killed_in_mid_run_the_same_call_goes_on_and_loses_nothing(campaign, report: Path) -> None:
    for wanted in (2, 7):  # in the first pass and in the second
        one = campaign()
        assert eventually(lambda wanted=wanted: len(lines(report)) >= wanted)
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        assert eventually(lambda: not workers_now())
        assert len(lines(report)) < 18
    before = b"".join(lines(report))
    assert before.endswith(b"\n")
    path = Store(report).path(HOST.id, STUDY)
    with path.open("ab") as file:  # and then the power failed, in the middle of a line
        file.write(lines(report)[0][:100])
    last = campaign()
    assert last.wait(timeout=60) == 0
    assert path.read_bytes().startswith(before), "earlier records are kept byte for byte"
    values = [json.loads(line) for line in lines(report)]
    pairs = [(one["key"], one["pass"]) for one in values]
    assert len(pairs) == len(set(pairs)) == 18
    assert all(one["status"] == "ok" for one in values)


@pytest.mark.parametrize("workload", ["hang", "hang_with_child"])
def test_a_worker_whose_runner_was_killed_ends_by_itself_with_all_it_started(campaign, report, workload: str) -> None:
    one = campaign(workload)
    hanging = 3 if workload == "hang" else 4  # runner, telemetry, worker and, where it has one, its child

    def hangs() -> bool:
        return len(workers_now()) == hanging and _has_been_quiet(report)

    assert eventually(hangs)
    one.kill()  # the runner alone
    one.wait()
    assert eventually(lambda: not workers_now())


def _has_been_quiet(report: Path) -> bool:
    """No record for half a second although some were written: the trial that hangs is running."""
    path = Store(report).path(HOST.id, STUDY)
    return path.exists() and time.time() - path.stat().st_mtime > 0.5


def test_two_measurements_at_once_are_refused_and_the_first_ones_death_frees_the_machine(
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


def test_what_was_measured_while_waiting_for_the_machine_is_not_measured_again(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_the_other_one():
        monkeypatch.setattr(runner, "only_measurement", only_measurement)
        run(sound(2), report)  # the same study, by somebody who came first
        return only_measurement()

    monkeypatch.setattr(runner, "only_measurement", wait_for_the_other_one)
    outcome = run(sound(3), report)
    pairs = [(record.key, record.pass_number) for record in records(report)]
    assert len(pairs) == len(set(pairs)) == 3
    assert (outcome.measured, outcome.resumed) == (1, 2)


def test_reading_a_report_needs_no_lock(report: Path) -> None:
    run(sound(1), report)
    with only_measurement(wait_s=0):
        assert run(sound(1), report).resumed == 1


def test_the_lock_is_free_again_after_a_measurement_that_failed(report: Path) -> None:
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
    monkeypatch.setenv("PYTHONPATH", str(broken))
    log = report / "logs" / f"{STUDY}.log"
    with pytest.raises(LabkitError, match="psutil was built for another Python") as caught:
        run(sound(1), report)
    assert caught.value.exit_code == 1
    assert str(log) in str(caught.value)
    assert "Traceback" in log.read_text()
    assert not records(report), "no trial is to blame"


def test_a_worker_that_never_says_hello_is_an_error_that_names_its_log(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "pydantic.py").write_text("import time; time.sleep(600)\n")  # the worker imports it, the sampler does not
    monkeypatch.setenv("PYTHONPATH", str(slow))
    monkeypatch.setattr(runner, "STARTUP_LIMIT_S", 1.0)
    with pytest.raises(LabkitError, match=rf"did not start within 1 s; see {report}/logs/{STUDY}.log"):
        run(sound(1), report)
    assert not workers_now()
    assert not records(report)
