"""Tests of trials on several ranks: each gives a record even if ranks fail, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import data_parallel
from labkit.data import open_data
from labkit.errors import UserError
from labkit.models import count
from labkit.timing.blocks import MIN_BLOCKS
from tests.faulty.campaign import TIMING, listed_for, records, run
from tests.faulty.together import SLOW_S
from tests.processes import eventually, ranks_now, workers_now
from tests.workbook.conftest import Measured
from workbook.hardware.limits import usable_threads
from workbook.paths import ROOT
from workbook.records import Epochs, Record
from workbook.reuters import open_documents
from workbook.runner.group import first_failure
from workbook.trials.trial import Trial

pytestmark = [
    pytest.mark.skipif(usable_threads() < 2, reason="two ranks on a CPU take two cores"),
    pytest.mark.usefixtures("_nothing_is_left_running"),
]


def together(workload: str = "together", *, devices: int = 2, size: int = 0, **fields: Any) -> Trial:
    return Trial(workload=f"tests.faulty.{workload}", device="cpu", data="none", devices=devices, size=size, **fields)


def between(workload: str, **fields: Any) -> Trial:
    return Trial(workload=workload, device="cpu", data="none", **{"devices": 2, "size": 4096, **fields})


def assert_ok(*made: Record) -> None:
    assert [record.status for record in made] == ["ok"] * len(made), [record.reason for record in made]


def test_an_interrupted_comparison_of_parallel_steps_does_not_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(data_parallel, "measure", interrupted)
    monkeypatch.setattr(sys, "argv", ["data_parallel.py", "--device", "cpu", "--gpus", "1"])
    assert data_parallel.main() == 130


MANY = usable_threads() + 1  # devices

# ---- a single pass, because starting processes takes longer than most trials ---------------------------------------

RAISED, KILLED = "OutOfMemoryError: no room for this layer", "it was killed by signal 9 (SIGKILL)"
FAILURES = [("kill", 2, "crashed", KILLED), ("oom", 2, "oom", RAISED)]  # each costs new processes

IN_BUCKETS = "tests.faulty.train_in_buckets"
IMAGES = {"model": "resnet18", "batch": 8}  # the other trials read documents, which is faster
ASYNCHRONOUS = {"updates": "asynchronous"}
TOGETHER = {"placement": "together"}
LEARNERS = MANY  # more than there are devices
APART: dict[str, dict[str, Any]] = {
    "apart": {"workload": "tests.faulty.train_apart"},
    "apart, in buckets": {"workload": IN_BUCKETS, "size": 1},
}
TRAINED: dict[str, dict[str, Any]] = {
    "weak": {},
    "strong": {"scaling": "strong", "batch": 16},
    "epochs": {"epochs": 1},
    "alone": {"devices": 1},
    "rounded": {"gradient_precision": "fp16"},
    "pointless": {"devices": 1, "gradient_precision": "bf16"},
    "of images": {"epochs": 1, **IMAGES},
    "rounded, in buckets": {"workload": IN_BUCKETS, "gradient_precision": "fp16", **IMAGES},
    "epochs, in buckets": {"workload": IN_BUCKETS, "epochs": 1, **IMAGES},
    "compiled": {"engine": "compile"},
    "beyond": {"workload": "tests.faulty.train_rounded", "precision": "bf16"},
    "halves": {"arrangement": "at_once"},
    "turns": {"arrangement": "in_sequence"},
    "shared": {"arrangement": "at_once", "devices": 1},
    "halves, epochs": {"arrangement": "at_once", "epochs": 1},
    "stale": ASYNCHRONOUS,
    "stale, epochs": {**ASYNCHRONOUS, "epochs": 2, "schedule": "warm_up"},
    "stale, alone": {**ASYNCHRONOUS, "devices": 1},
    "many together": {"epochs": 1, "devices": LEARNERS, **TOGETHER},
    "epochs, together": {"epochs": 1, **TOGETHER},
    "compiled, together": {"epochs": 1, "engine": "compile", **TOGETHER},
    "rounded, together": {"epochs": 1, "gradient_precision": "bf16", **TOGETHER},
}


def training(**fields: Any) -> Trial:
    trial = Trial(**{"model": "mlp512", "batch": 8, "devices": 2, "device": "cpu", **fields})
    if trial.model == "mlp512":
        data = open_documents(train_documents=96, val_documents=60)
    else:
        data = open_data("synthetic32", train_images=64, val_images=40)
    return replace(trial, data=data.name, data_checksum=data.checksum, classes=data.classes)


@pytest.fixture(scope="module")
def made(measured: Measured) -> dict[str, Record]:
    """Return records by key in running order: failing trials, each between sound trials, then all other trials."""
    failing = [together(size=size) for size in range(10, 11 + 2 * len(FAILURES))]
    failing[1::2] = [together(f"together_{how}", size=rank) for how, rank, *_ in FAILURES]
    refused = [together("together_unsupported", size=2), together(devices=MANY), together(nodes=2)]
    # More processes on one device than there are devices. Their trial must not lend its device to another trial.
    refused += [together(devices=MANY, epochs=1, placement="together")]
    sent = [between("all_reduce"), between("peer_copy"), between("all_reduce", devices=1), between("peer_copy", size=3)]
    fine = [together(size=7), together(devices=1), together("unequal"), together("stale")]
    unlike, learning = ([training(**fields) for fields in some.values()] for some in (APART, TRAINED))
    return measured(listed_for([*failing, *fine, *refused, *sent, *learning, *unlike]), limit_s=280)


@pytest.fixture
def trained(made: dict[str, Record]) -> dict[str, Record]:
    """Return the records of training trials by their names in APART and TRAINED."""
    return {name: made[training(**fields).key] for name, fields in (APART | TRAINED).items()}


# ---- trials that succeed --------------------------------------------------------------------------------------------


def test_ranks_take_the_same_steps_and_rank_0_times_them(made: dict[str, Record]) -> None:
    both = [made[record.key] for record in (together(size=7), together(devices=1))]
    assert_ok(*both)
    for record in both:
        devices = record.as_trial.devices
        assert record.devices_used == devices
        assert record.facts["sum"] == devices * (devices + 1) / 2
        assert record.facts["ranks"] == devices
        assert record.facts["threads"] == max(1, usable_threads() // devices) or devices == 1
        assert record.blocks is not None
        assert len(record.blocks.host_s) >= MIN_BLOCKS or record.blocks.timed_s >= 2 * TIMING.timed_s
    assert len({record.process.id for record in both}) == 1, "the ranks of a pass run all of its trials"


def test_a_block_lasts_until_the_slowest_rank_is_done(made: dict[str, Record]) -> None:
    unequal = made[together("unequal").key]
    assert unequal.blocks is not None
    assert min(unequal.blocks.host_s) / unequal.blocks.steps_per_block >= SLOW_S


def test_a_trial_that_a_rank_cannot_run_is_unsupported_and_the_ranks_go_on(made: dict[str, Record]) -> None:
    refused, beside = made[together("together_unsupported", size=2).key], made[together(size=7).key]
    assert (refused.status, refused.reason) == ("unsupported", "this rank's device has no such engine")
    assert beside.status == "ok"
    assert refused.process.id == beside.process.id


def test_a_trial_on_more_devices_or_nodes_than_there_are_is_unsupported(made: dict[str, Record]) -> None:
    for asked, said in ({"devices": MANY}, f"asks for {MANY} devices"), ({"nodes": 2}, "NODES=2"):
        refused = made[together(**asked).key]
        assert (refused.status, refused.cause) == ("unsupported", "here"), "another allocation may have them"
        assert said in (refused.reason or "")


def test_bytes_between_devices_are_counted(made: dict[str, Record]) -> None:
    summed, copied = made[between("all_reduce").key], made[between("peer_copy").key]
    for record in (summed, copied):
        assert record.status == "ok", record.reason
        assert record.blocks is not None and record.blocks.bytes_per_step == 4096
    assert summed.facts["wire_bytes_per_step"] == 4096
    alone, small = made[between("all_reduce", devices=1).key], made[between("peer_copy", size=3).key]
    assert (alone.status, small.status) == ("unsupported", "unsupported")
    assert (alone.cause, small.cause) == ("never", "never"), "the ranks agree on the cause too"
    assert "two devices or more" in (alone.reason or "") and "3 bytes" in (small.reason or "")


# ---- ranks that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "how", "rank", "status", "said"), [(n, *one) for n, one in enumerate(FAILURES)])
def test_a_rank_that_fails_costs_only_its_trial_and_is_named(
    made: dict[str, Record], place: int, how: str, rank: int, status: str, said: str
) -> None:
    before, failed, after = list(made.values())[2 * place : 2 * place + 3]
    assert failed.as_trial == together(f"together_{how}", size=rank)
    assert before.status == after.status == "ok"
    assert failed.status == status
    assert failed.reason == f"rank {rank - 1} of 2: {said}"
    assert failed.facts["failed_rank"] == rank - 1
    if how == "oom":
        assert 'raise torch.OutOfMemoryError("no room for this layer")' in failed.facts["traceback"]
        assert str(Path.home()) not in failed.facts["traceback"]


def test_ranks_that_find_no_connection_say_why(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib9")
    run([together()], report)
    (failed,) = records(report)
    assert failed.status == "crashed" and "ib9" in str(failed.reason), failed.reason
    assert "init_process_group" in failed.facts["traceback"]


def test_the_gate_finds_gradients_that_are_not_averaged(trained: dict[str, Record]) -> None:
    for name in APART:
        assert trained[name].status == "crashed"
        assert re.match("rank [01] of 2: correctness gate: ", trained[name].reason or "")


def test_a_rank_that_hangs_is_ended_at_the_limit_and_named(report: Path) -> None:
    hanging = together("together_hang", size=2)
    run(
        listed_for([hanging, together(devices=1)]), report, limit_s=20.0
    )  # far less than the 600 s that the rank sleeps
    failed, after = records(report)
    assert (failed.as_trial, failed.status) == (hanging, "timeout")
    assert "no result within 20 s" in (failed.reason or "")
    assert "tests/faulty/__init__.py" in (failed.reason or "") and "rank 1 stands" in (failed.reason or "")
    assert "rank 0 stands" not in (failed.reason or ""), "rank 0 only waits for rank 1"
    assert "time.sleep(600)" in failed.facts["stacks"]["1"]
    assert after.status == "ok"


def test_the_ranks_end_with_their_runner(report: Path) -> None:
    code = (
        "from tests.faulty.campaign import *; "
        f"run([{together('together_hang', size=2)!r}], Path(sys.argv[1]), limit_s=600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(report)], cwd=ROOT)
    assert eventually(lambda: len(ranks_now()) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert eventually(lambda: not workers_now())


# ---- training -------------------------------------------------------------------------------------------------------


def difference(made: Record) -> float:
    """Return the relative difference of the gate's weight changes from the expected changes."""
    return made.facts["gate"]["change_difference"]  # type: ignore[no-any-return]


def assert_small_network(made: Record, documents: int) -> None:
    """Assert that a step trains `documents` documents and has the FLOP and parameters of mlp512."""
    assert made.blocks is not None and made.blocks.images_per_step == documents
    assert made.blocks.flop_per_step == documents * count("mlp512").flop_training
    assert made.facts["parameters"] == count("mlp512").parameters


def test_two_ranks_train_a_network_together(trained: dict[str, Record]) -> None:
    names = ("weak", "strong", "epochs", "of images", "alone", "rounded")
    weak, strong, epochs, of_images, alone, rounded = made = [trained[name] for name in names]
    assert_ok(*made)
    for record, documents in ((weak, 16), (strong, 16), (alone, 8)):
        assert_small_network(record, documents)
    for record in (weak, strong, epochs, of_images):  # compared with gradients averaged by hand
        assert difference(record) <= record.facts["gate"]["change_tolerance"]
    assert max(difference(weak), difference(epochs)) < 1e-5 < difference(rounded)
    pointless = trained["pointless"]
    assert (pointless.status, pointless.reason) == ("unsupported", "one device exchanges no gradients")
    for record, steps, images, val_images in ((epochs, 6, 96, 60), (of_images, 4, 64, 40)):
        assert isinstance(record.result, Epochs)
        (epoch,) = record.result.epochs
        assert (epoch.steps, epoch.images, epoch.val_images) == (steps, images, val_images)
    assert "gradient_buckets_bytes" not in weak.facts, "the baseline uses DistributedDataParallel"


def test_a_step_in_buckets_passes_its_gate_and_restarts_like_the_baseline(trained: dict[str, Record]) -> None:
    rounded, epochs, plain = made = [
        trained[name] for name in ("rounded, in buckets", "epochs, in buckets", "of images")
    ]
    assert_ok(*made)
    half, full = (item.facts["gradient_buckets_bytes"] for item in (rounded, epochs))
    parameters = plain.facts["parameters"]
    assert 4 * parameters <= sum(full) < 4.01 * parameters and len(full) > 3
    assert 2 * parameters <= sum(half) < 2.01 * parameters
    assert difference(epochs) < 1e-5 < difference(rounded)
    runs = [item.result for item in (epochs, plain)]
    assert all(isinstance(item, Epochs) for item in runs)
    ours, theirs = ([epoch.train_loss for epoch in item.epochs] for item in runs)  # type: ignore[union-attr]
    assert ours == pytest.approx(theirs, rel=1e-3), "after the gate's steps both start from the same weights"


def test_all_ranks_are_compared_with_fp32_if_any_exceeds_its_tolerances(
    trained: dict[str, Record],
) -> None:
    made = trained["beyond"]
    assert_ok(made)
    assert made.facts["gate"]["against"] == "plain FP32", "the facts are of rank 0, which was within its tolerances"
    assert 0 < difference(made) <= made.facts["gate"]["change_tolerance"]


def test_two_jobs_run_at_once_or_in_sequence(trained: dict[str, Record]) -> None:
    for name, documents, devices in (("halves", 16, 2), ("turns", 32, 2), ("shared", 16, 1)):
        record = trained[name]
        assert_ok(record)
        assert_small_network(record, documents)
        assert (record.devices_used, record.facts["jobs"]) == (devices, 2)
    assert difference(trained["turns"]) < 1e-5, "compared with gradients averaged by hand"
    assert "gate" not in trained["halves"].facts, "the gate needs two ranks in a job"
    assert trained["halves, epochs"].status == "unsupported"


def test_learners_on_a_shared_device_learn_the_same_as_on_separate_devices(trained: dict[str, Record]) -> None:
    apart, shared, many = made = [trained[name] for name in ("epochs", "epochs, together", "many together")]
    assert_ok(*made)
    assert (apart.devices_used, shared.devices_used, many.devices_used) == (2, 1, 1)
    assert len({record.process.id for record in (apart, shared)}) == 2, "another placement needs other processes"
    learned = [(record.epochs.epochs[0].train_loss, record.epochs.epochs[0].top1) for record in made if record.epochs]
    assert learned[0] == learned[1], "the placement changes no result"
    assert many.epochs is not None
    assert many.epochs.epochs[0].steps == -(-96 // (8 * LEARNERS)), "as many learners as requested"
    for name, said in (("compiled, together", "Gloo, and need the mode"), ("rounded, together", "Gloo has FP16")):
        assert (trained[name].status, said in (trained[name].reason or "")) == ("unsupported", True)


def test_learners_that_share_a_device_can_only_train_whole_epochs() -> None:
    for fields, said in (
        ({"devices": 1, "epochs": 1}, "at least two processes"),
        ({"devices": 2}, "whole epochs"),
        ({"devices": 2, "epochs": 1, "interconnect": "host"}, "interconnect='direct'"),
        ({"devices": 4, "epochs": 1, "nodes": 2}, "nodes=1"),
        ({"devices": 2, "epochs": 1, "arrangement": "at_once"}, "arrangement='alone'"),
        ({"devices": 2, "epochs": 1, "framework": "keras-torch"}, "framework='torch'"),
        ({"devices": 2, "epochs": 1, "parallel": "one_process", "scaling": "strong"}, "parallel='ranks'"),
    ):
        with pytest.raises(UserError, match=said):
            Trial(**TOGETHER, **fields)


def test_a_trial_that_devices_cannot_share_evenly_is_refused_before_it_runs() -> None:
    with pytest.raises(UserError, match="even number of devices, or one device, not 3"):
        Trial(arrangement="at_once", devices=3)
    with pytest.raises(UserError, match="shared by 3 devices evenly"):
        Trial(scaling="strong", batch=64, devices=3)


def test_stale_updates_equal_those_of_a_parameter_server(made: dict[str, Record], trained: dict[str, Record]) -> None:
    epochs, alone = trained["stale, epochs"], trained["stale, alone"]
    assert_ok(made[together("stale").key], trained["stale"], epochs)
    assert isinstance(epochs.result, Epochs)
    first, second = epochs.result.epochs
    assert first.learning_rate == second.learning_rate == 0.01
    assert (alone.status, "several devices" in (alone.reason or "")) == ("unsupported", True)


def test_two_ranks_train_a_compiled_network(trained: dict[str, Record]) -> None:
    made = trained["compiled"]
    assert_ok(made)
    assert difference(made) < 1e-3 and made.facts["gradient_buckets_bytes"]


LOST_PEER, NO_ROOM = "Connection closed by peer", "OutOfMemoryError: no room"


def reported(reason: str, order: int) -> dict[str, Any]:
    return {"status": "crashed", "reason": reason, "order": order}


@pytest.mark.parametrize(
    ("reports", "exit_codes", "rank"),
    [
        ({1: reported(LOST_PEER, 1), 0: reported(NO_ROOM, 2)}, {0: 3, 1: 3}, 0),
        ({2: reported(NO_ROOM, 1), 0: reported("ValueError", 2)}, {0: 3, 1: -signal.SIGTERM, 2: 3}, 2),
        ({0: reported("ncclSystemError", 1)}, {0: 3, 3: -signal.SIGKILL}, 3),
        ({0: reported("ValueError", 1)}, {0: 3, 1: -signal.SIGABRT, 2: -signal.SIGTERM}, 0),
        ({0: reported(LOST_PEER, 1)}, {0: 3, 1: -signal.SIGABRT}, 1),
        ({}, {0: -signal.SIGTERM, 1: 7}, 1),
    ],
    ids=["raised", "reported first", "killed", "raised before an abort", "aborted", "ended without a report"],
)
def test_the_failure_names_the_rank_that_failed_first(
    reports: dict[int, dict[str, Any]], exit_codes: dict[int, int], rank: int
) -> None:
    outcome = first_failure(reports, exit_codes, 4, for_memory=False)
    assert outcome is not None and outcome["facts"]["failed_rank"] == rank
    assert outcome["reason"].startswith(f"rank {rank} of 4: ")


def test_a_rank_killed_for_memory_is_told_from_a_killed_rank() -> None:
    of_kernel, of_someone = (first_failure({}, {1: -signal.SIGKILL}, 2, for_memory=oom) for oom in (True, False))
    assert of_kernel is not None and of_kernel["status"] == "oom"
    assert of_someone is not None and of_someone["status"] == "crashed"
    assert first_failure({}, {}, 2, for_memory=True) is None, "the runner ended the ranks"
