"""Several processes run a trial together: one record whatever happens, and nothing of them is left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from labkit.cpu_limits import usable_threads
from labkit.data import DataSet, open_data
from labkit.errors import UserError
from labkit.records import Epochs, Record
from labkit.trial import Trial
from tests.faulty.campaign import records, run
from tests.faulty.unequal import SLOW_S
from tests.processes import eventually, ranks_now, workers_now

pytestmark = [
    pytest.mark.skipif(usable_threads() < 2, reason="two ranks on a CPU take two cores"),
    pytest.mark.usefixtures("_nothing_is_left_running"),
]


def together(workload: str = "together", *, devices: int = 2, size: int = 0, **fields: Any) -> Trial:
    return Trial(workload=f"tests.faulty.{workload}", device="cpu", data="none", devices=devices, size=size, **fields)


def by_trial(report: Path) -> dict[tuple[str, int, int], Record]:
    return {
        (one.as_trial.workload.removeprefix("tests.faulty."), one.as_trial.devices, one.as_trial.size): one
        for one in records(report)
    }


def test_ranks_take_the_same_steps_and_the_first_of_them_times_them(report: Path) -> None:
    outcome = run([together(), together(devices=1)], report, passes=2)
    assert outcome.measured == 4 and outcome.failed == 0
    made = records(report)
    assert [one.status for one in made] == ["ok"] * 4
    for one in made:
        devices = one.as_trial.devices
        assert one.devices_used == devices
        assert one.facts["sum"] == devices * (devices + 1) / 2
        assert one.facts["ranks"] == devices
        assert one.facts["threads"] == max(1, usable_threads() // devices) or devices == 1
        assert one.blocks is not None and len(one.blocks.host_s) >= 5
    assert len({one.process.id for one in made}) == 2, "the ranks of a pass stay for all of its trials"


def test_a_block_is_done_when_the_slowest_rank_is(report: Path) -> None:
    run([together("unequal")], report)
    (made,) = records(report)
    assert made.blocks is not None
    assert min(made.blocks.host_s) / made.blocks.steps_per_block >= SLOW_S


@pytest.mark.parametrize(
    ("how", "rank", "status", "said"),
    [
        ("raises", 1, "crashed", "ValueError: this rank has no such layer"),
        ("raises", 2, "crashed", "ValueError: this rank has no such layer"),
        ("kill", 1, "crashed", "it was killed by signal 9 (SIGKILL)"),
        ("kill", 2, "crashed", "it was killed by signal 9 (SIGKILL)"),
        ("oom", 2, "oom", "out of memory: no room for this layer"),
    ],
)
def test_a_rank_that_fails_costs_its_trial_alone_and_is_named(
    report: Path, how: str, rank: int, status: str, said: str
) -> None:
    trials = [together(size=7), together(f"together_{how}", size=rank), together(size=8)]
    run(trials, report)
    made = by_trial(report)
    assert len(records(report)) == 3
    assert made["together", 2, 7].status == made["together", 2, 8].status == "ok"
    failed = made[f"together_{how}", 2, rank]
    assert failed.status == status
    assert failed.reason == f"rank {rank - 1} of 2: {said}"
    assert failed.facts["failed_rank"] == rank - 1
    if how == "raises":
        assert 'raise ValueError("this rank has no such layer")' in failed.facts["traceback"]
        assert str(Path.home()) not in failed.facts["traceback"]


def test_a_rank_that_hangs_ends_its_trial_in_time_and_is_found(report: Path) -> None:
    began = time.monotonic()
    run([together("together_hang", size=2), together(size=7)], report, limit_s=12.0)
    assert time.monotonic() - began < 90
    made = by_trial(report)
    failed = made["together_hang", 2, 2]
    assert failed.status == "timeout"
    assert "no result within 12 s" in (failed.reason or "")
    assert "tests/faulty/together_hang.py" in (failed.reason or "") and "rank 1 stands" in (failed.reason or "")
    assert "time.sleep(600)" in failed.facts["stacks"]["1"]
    assert made["together", 2, 7].status == "ok"


def test_what_one_rank_cannot_run_none_runs_and_they_go_on(report: Path) -> None:
    run([together("together_unsupported", size=2), together(size=7)], report)
    made = by_trial(report)
    refused = made["together_unsupported", 2, 2]
    assert (refused.status, refused.reason) == ("unsupported", "this rank's device has no such engine")
    assert made["together", 2, 7].status == "ok"
    assert refused.process.id == made["together", 2, 7].process.id


def test_more_devices_than_there_are_is_no_trial_on_fewer(report: Path) -> None:
    many = usable_threads() + 1
    run([together(devices=many), together()], report)
    made = by_trial(report)
    refused = made["together", many, 0]
    assert refused.status == "unsupported"
    assert f"asks for {many} devices" in (refused.reason or "")
    assert made["together", 2, 0].status == "ok"


def test_the_runner_takes_its_ranks_with_it(report: Path) -> None:
    import os
    import signal
    import subprocess
    import sys

    from labkit.host import ROOT

    code = (
        "from tests.unit.test_ranks import *; from pathlib import Path; import sys; "
        "run([together('together_hang', size=2)], Path(sys.argv[1]), limit_s=600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(report)], cwd=ROOT)
    assert eventually(lambda: len(ranks_now()) >= 2, within_s=60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert eventually(lambda: not workers_now(), within_s=10)


# ---- training -------------------------------------------------------------------------------------------------------


def training(data: DataSet, **fields: Any) -> Trial:
    about = {"model": "resnet18", "batch": 8, "devices": 2, "device": "cpu", **fields}
    return Trial(data=data.name, data_checksum=data.checksum, **about)


def test_two_ranks_train_one_network(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    trials = [
        training(data),
        training(data, scaling="strong", batch=16),
        training(data, epochs=1),
        training(data, devices=1),
        training(data, gradient_precision="fp16"),
        training(data, devices=1, gradient_precision="bf16"),
    ]
    run(trials, report, limit_s=120)
    made = {one.key: one for one in records(report)}
    weak, strong, epochs, alone, rounded, pointless = (made[trial.key] for trial in trials)
    for one in (weak, strong, epochs, alone, rounded):
        assert one.status == "ok", one.reason
    for one, images in ((weak, 16), (strong, 16), (alone, 8)):
        assert one.blocks is not None
        assert one.blocks.images_per_step == images
    for one in (weak, strong, epochs):  # held against gradients that are averaged by hand
        assert one.facts["gate"]["change_difference"] <= one.facts["gate"]["change_tolerance"]
    assert weak.facts["gate"]["change_difference"] < 1e-5 < rounded.facts["gate"]["change_difference"]
    assert (pointless.status, pointless.reason) == ("unsupported", "one device exchanges no gradients")
    assert isinstance(epochs.result, Epochs)
    assert (epochs.result.epochs[0].steps, epochs.result.epochs[0].images) == (10, 160)
    assert "gradient_buckets_bytes" not in weak.facts, "the plain loop is DistributedDataParallel's"


def test_gradients_that_are_not_averaged_are_found(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    apart = [training(data, workload="tests.faulty.train_apart"), training(data, workload=IN_BUCKETS, size=1)]
    run(apart, report, limit_s=120)
    for made in records(report):
        assert made.status == "crashed"
        assert "correctness gate" in (made.reason or "")


# ---- the exchange of tuned steps ------------------------------------------------------------------------------------

IN_BUCKETS = "tests.faulty.train_in_buckets"


def test_buckets_of_every_size_average_what_averaging_by_hand_does(report: Path) -> None:
    run([together("bucketed")], report)
    (made,) = records(report)
    assert made.status == "ok", made.reason


def test_a_step_in_buckets_passes_its_gate_and_begins_anew_as_the_plain_one_does(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    rounded = training(data, workload=IN_BUCKETS, gradient_precision="fp16")
    epochs, plain = training(data, workload=IN_BUCKETS, epochs=1), training(data, epochs=1)
    run([rounded, epochs, plain], report, limit_s=120)
    made = {one.key: one for one in records(report)}
    assert [one.status for one in made.values()] == ["ok"] * 3, [one.reason for one in made.values()]
    half, full = (made[trial.key].facts["gradient_buckets_bytes"] for trial in (rounded, epochs))
    parameters = made[plain.key].facts["parameters"]
    assert 4 * parameters <= sum(full) < 4.01 * parameters and len(full) > 3
    assert 2 * parameters <= sum(half) < 2.01 * parameters
    assert (
        made[epochs.key].facts["gate"]["change_difference"]
        < 1e-5
        < made[rounded.key].facts["gate"]["change_difference"]
    )
    runs = [made[trial.key].result for trial in (epochs, plain)]
    assert all(isinstance(one, Epochs) for one in runs)
    ours, theirs = ([epoch.train_loss for epoch in one.epochs] for one in runs)  # type: ignore[union-attr]
    assert ours == pytest.approx(theirs, rel=1e-3), "after its gate's steps it begins where the plain one does"


@pytest.mark.slow
def test_two_ranks_train_a_compiled_network(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    run([training(data, engine="compile")], report, limit_s=280)
    (made,) = records(report)
    assert made.status == "ok", made.reason
    assert made.facts["gate"]["change_difference"] < 1e-3 and made.facts["gradient_buckets_bytes"]


# ---- transfers ------------------------------------------------------------------------------------------------------


def test_what_goes_between_the_devices_is_counted(report: Path) -> None:
    def between(workload: str, **fields: Any) -> Trial:
        return Trial(workload=workload, device="cpu", data="none", **{"devices": 2, "size": 4096, **fields})

    trials = [
        between("all_reduce"),
        between("peer_copy"),
        between("all_reduce", devices=1),
        between("peer_copy", size=3),
    ]
    run(trials, report)
    made = {one.key: one for one in records(report)}
    summed, copied, alone, small = (made[trial.key] for trial in trials)
    for one in (summed, copied):
        assert one.status == "ok", one.reason
        assert one.blocks is not None and one.blocks.bytes_per_step == 4096
    assert summed.facts["wire_bytes_per_step"] == 4096
    assert (alone.status, small.status) == ("unsupported", "unsupported")
    assert "two devices or more" in (alone.reason or "") and "3 bytes" in (small.reason or "")


# ---- two jobs -------------------------------------------------------------------------------------------------------


def test_two_jobs_run_at_once_or_in_turns(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    halves = training(data, arrangement="at_once")
    turns = training(data, arrangement="in_sequence")
    shared = training(data, arrangement="at_once", devices=1)
    whole = training(data, arrangement="at_once", epochs=1)
    run([halves, turns, shared, whole], report, limit_s=120)
    made = {one.key: one for one in records(report)}
    for trial, images, devices in ((halves, 16, 2), (turns, 32, 2), (shared, 16, 1)):
        one = made[trial.key]
        assert one.status == "ok", one.reason
        assert one.blocks is not None and one.blocks.images_per_step == images
        assert (one.devices_used, one.facts["jobs"]) == (devices, 2)
    assert "gate" in made[turns.key].facts and "gate" not in made[halves.key].facts, "two ranks of a job are compared"
    assert made[whole.key].status == "unsupported"


def test_a_trial_that_cannot_be_shared_out_is_refused_before_it_runs() -> None:
    with pytest.raises(UserError, match="half of 3 devices"):
        Trial(arrangement="at_once", devices=3)
    with pytest.raises(UserError, match="shared by 3 devices evenly"):
        Trial(scaling="strong", batch=64, devices=3)


# ---- stale updates --------------------------------------------------------------------------------------------------


def test_stale_updates_are_those_of_a_parameter_server_in_turns(report: Path) -> None:
    data = open_data("synthetic32", train_images=160, val_images=40)
    trials = [
        together("stale"),
        training(data, updates="asynchronous"),
        training(data, updates="asynchronous", epochs=2, schedule="warm_up"),
        training(data, updates="asynchronous", devices=1),
    ]
    run(trials, report, limit_s=120)
    made = {one.key: one for one in records(report)}
    exact, timed, epochs, alone = (made[trial.key] for trial in trials)
    for one in (exact, timed, epochs):
        assert one.status == "ok", one.reason
    assert isinstance(epochs.result, Epochs)
    first, second = epochs.result.epochs
    assert first.learning_rate == second.learning_rate == 0.01
    assert (alone.status, "several devices" in (alone.reason or "")) == ("unsupported", True)
