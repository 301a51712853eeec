"""Tests of training runs over whole epochs and of preparations, with real worker processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faulty.campaign import HOST, STUDY, listed_for, records, run, sound, tiny_profile, trial
from tests.workbook.conftest import Measured
from workbook.records import Epochs, Record, parse_line
from workbook.records.store import Store
from workbook.reuters import open_documents
from workbook.runner import measure
from workbook.session import Session
from workbook.trials.trial import Trial

BEFORE, AFTER = sound(2)
TRAINED, UNTRAINED = replace(trial("epochs"), epochs=2, seed=5, batch=4), replace(trial("ok"), epochs=2)
PREPARED, BROKEN = trial("prepared"), trial("prepares_badly")


@pytest.fixture(scope="module")
def one_pass(measured: Measured) -> dict[str, Record]:
    """Return the records of a pass by key."""
    return measured(listed_for([BEFORE, TRAINED, UNTRAINED, PREPARED, BROKEN, AFTER]))


def test_the_row_of_an_epoch_holds_its_steps_images_losses_and_scores(one_pass: dict[str, Record]) -> None:
    made = one_pass[TRAINED.key]
    assert made.status == "ok", made.reason
    assert made.blocks is None and isinstance(made.result, Epochs)
    first, second = made.epochs.epochs
    assert (first.steps, second.steps) == (3, 2)
    assert (first.images, second.images) == (12, 8), "an epoch ends with the step that completes it"
    assert (first.train_loss, second.train_loss) == (3.0, 5.0), "steps count from the restart after the gate"
    assert (first.learning_rate, second.learning_rate) == (1 / 3, 1 / 5), "the rate of the epoch's last step"
    assert (second.val_loss, second.top1, second.top5, second.val_images) == (None, 0.25, 0.5, 8)
    assert made.phases_s["timed"] == pytest.approx(first.train_s + second.train_s)
    assert made.phases_s["validation"] == pytest.approx(first.val_s + second.val_s)
    assert "warmup" not in made.phases_s and "blocks" not in made.phases_s


def test_each_pass_of_a_training_run_has_its_own_seed(report: Path) -> None:
    timed = replace(trial("epochs"), seed=5)
    run([timed, replace(timed, epochs=1)], report, passes=2)
    made = sorted(records(report), key=lambda record: record.pass_number)
    trained = [(record.epochs.seed, record.facts["seed_of_build"]) for record in made if record.epochs]
    assert trained == [(5, 5), (6, 6)]
    assert [record.facts["seed_of_build"] for record in made if not record.epochs] == [5] * 4, "the trial's seed"
    assert {record.trial["seed"] for record in made} == {5}, "the record keeps the seed of the trial"
    assert len({record.key for record in made}) == 2


def test_epochs_of_a_workload_that_does_not_train_epochs_are_unsupported(
    one_pass: dict[str, Record], report: Path
) -> None:
    made = one_pass[UNTRAINED.key]
    assert (made.status, made.result) == ("unsupported", None)
    assert "tests.faulty.ok workload does not train whole epochs" in (made.reason or "")
    Store(report).append(made)
    assert run([UNTRAINED], report).measured == 0, "this version of the workload trains no epochs"


def test_preparations_are_timed_separately_in_their_order_before_the_first_step(one_pass: dict[str, Record]) -> None:
    made, plain = one_pass[PREPARED.key], one_pass[BEFORE.key]
    assert made.status == "ok", made.reason
    phases = [name for name in made.phases_s if name not in ("idle", "blocks", "warmup", "timed")]
    assert phases == ["build", "reference", "compile", "capture", "first_step"]
    assert made.facts["done"] == ["reference", "compile", "capture", "check"]
    assert all(made.phases_s[name] >= 0.01 for name in ("reference", "compile", "capture"))
    # A captured step allocates at capture, so the peak of its replays means nothing: the workload states its memory.
    assert (made.facts["memory_bytes"], made.facts["memory_method"]) == (12345, "as the workload says")
    assert plain.facts["memory_bytes"] > 1_000_000


def test_a_preparation_that_raises_costs_only_its_own_trial(one_pass: dict[str, Record]) -> None:
    before, failed, after = (one_pass[one.key] for one in (PREPARED, BROKEN, AFTER))
    assert [before.status, after.status] == ["ok", "ok"]
    assert (failed.status, failed.result) == ("crashed", None)
    assert failed.reason == "RuntimeError: the compiler gave up"
    assert "reference" in failed.phases_s, "completed preparations are recorded"
    assert "compile" not in failed.phases_s and "first_step" not in failed.phases_s
    assert after.process.id != failed.process.id


def test_the_records_of_a_training_run_are_read_back_unchanged(report: Path) -> None:
    pytest.importorskip("torch")
    documents = open_documents(train_documents=94, val_documents=60)
    training = Trial(
        model="mlp512",
        classes=documents.classes,
        batch=16,
        device="cpu",
        data=documents.name,
        data_checksum=documents.checksum,
        epochs=2,
        learning_rate=0.02,
        schedule="one_cycle",
        seed=11,
    )
    store = Store(report)
    profile = tiny_profile(passes=2, limit_s=200)
    outcome = measure([training], study=STUDY, session=Session(scale="smoke", profile=profile, host=HOST, store=store))
    assert (outcome.measured, outcome.failed) == (2, 0)
    lines = store.path(HOST.id, STUDY).read_text(encoding="utf-8").splitlines()
    made = records(report)
    assert [parse_line(line) for line in lines] == made
    assert [item.line() for item in made] == lines
    runs = [item.epochs for item in made if item.epochs]
    assert [item.seed for item in runs] == [11, 12]
    for item in runs:
        assert [epoch.steps for epoch in item.epochs] == [6, 6], "94 documents twice are 11.75 batches of 16"
        losses = [epoch.train_loss for epoch in item.epochs]
        assert None not in losses and losses[1] < losses[0]  # type: ignore[operator]
        assert all(epoch.val_images == 60 and epoch.top1 <= epoch.top5 for epoch in item.epochs)
        assert item.epochs[0].learning_rate > item.epochs[1].learning_rate > 0
    assert runs[0].epochs[0].train_loss != runs[1].epochs[0].train_loss, "of another seed"
    assert all(item.facts["train_images"] == 94 for item in made)
