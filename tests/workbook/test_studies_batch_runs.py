"""Training runs at equal epochs, updates and seconds (`workbook/studies/batch_runs.py`)."""

from __future__ import annotations

import pandas as pd
import pytest

from workbook import estimate
from workbook.studies import batch_runs
from workbook.study import open_study
from workbook.trials import recipes

IMAGES = 6_400


def a_run(batch: int, rate: float, epochs: int, seconds: float, top1: float, number: int) -> dict[str, object]:
    of_host = {
        "profile": "h200",
        "study": "02_batch_size",
        "host": "h",
        "machine": "m",
        "protocol": 3,
        "scale": "quick",
    }
    of_pass = {"pass_number": number, "planned_passes": 2.0, "record": f"{batch}/{rate}/{epochs}/{number}"}
    return {**of_host, **of_pass, "batch": batch, "learning_rate": rate, "epochs": epochs, "top1": top1} | {
        "train_s": seconds
    }


@pytest.fixture
def runs() -> pd.DataFrame:
    rows = []
    for number, more in ((1, 0.0), (2, 0.02)):
        rows += [
            a_run(64, 0.01, 2, 8.0, 0.5 + more, number),
            a_run(64, 0.01, 4, 16.0, 0.9 + more, number),
            a_run(256, 0.01, 2, 4.0, 0.2 + more, number),
            a_run(256, 0.01, 8, 16.0, 0.4 + more, number),
            a_run(256, 0.04, 2, 4.0, 0.4 + more, number),
            a_run(256, 0.04, 8, 16.0, 0.6 + more, number),
        ]
    frame = pd.DataFrame(rows)
    epochs = frame.loc[frame.index.repeat(frame["epochs"])]
    epochs = epochs.assign(steps=IMAGES // epochs["batch"], train_s=epochs["train_s"] / epochs["epochs"])
    return batch_runs.described(frame.drop(columns="train_s"), epochs[["record", "steps", "train_s"]])


def test_the_runs_of_a_sweep_grow_up_to_the_updates_of_the_smallest_batch() -> None:
    lab = open_study("02_batch_size", hw="h200", scale="quick", mode="plan")
    sizes = {"run_batch": [64, 256, 2048], "epochs": 8, "learning_rate": 0.01}
    sizes |= {"fixed_budgets": [1, 4], "scaled_budgets": [1, 2, 4, 32]}
    sweep = {**sizes, "run_model": "resnet18", "run_data": "none"}
    planned = batch_runs.trials(lab, sweep, recipes.recipes("cuda")["graph"])
    asked = {(trial.batch, trial.epochs, trial.learning_rate) for trial in planned}
    assert len(planned) == len(asked)
    assert asked == {
        *((64, epochs, 0.01) for epochs in (8, 16)),
        *((256, epochs, 0.01) for epochs in (8, 32)),
        *((256, epochs, 0.04) for epochs in (8, 16, 32)),
        *((2048, epochs, 0.01) for epochs in (8, 32)),
        *((2048, epochs, 0.32) for epochs in (8, 16, 32, 256)),
    }
    assert {(trial.engine, trial.schedule, trial.model) for trial in planned} == {("graph", "one_cycle", "resnet18")}


def test_batches_are_compared_at_equal_epochs_updates_and_seconds(runs: pd.DataFrame) -> None:
    assert set(runs.loc[runs["batch"] == 64, "rate"]) == {"fixed", "scaled"}
    found = estimate(batch_runs.equalled(runs), "top1", by=["equal", "rate", "batch"])
    values = found.set_index(["equal", "rate", "batch"])["value"].to_dict()
    middle = 0.01  # of the two passes
    expected = {
        ("epochs", "fixed", 256): 0.2,
        ("epochs", "scaled", 256): 0.4,
        ("updates", "fixed", 256): 0.4,
        ("updates", "scaled", 256): 0.6,
        ("seconds", "fixed", 256): 0.3,  # 8 s lie in the middle of 4 and 16 s on the logarithm
        ("seconds", "scaled", 256): 0.5,
    }
    expected |= {(equal, rate, 64): 0.5 for equal in ("epochs", "updates", "seconds") for rate in ("fixed", "scaled")}
    assert values == pytest.approx({key: value + middle for key, value in expected.items()})


def test_accuracy_beyond_the_runs_of_a_batch_is_missing(runs: pd.DataFrame) -> None:
    short = runs[(runs["batch"] == 64) | (runs["epochs"] == 2)]
    equal = batch_runs.equalled(short)
    rows = equal[(equal["equal"] == "seconds") & (equal["batch"] == 256)]
    assert len(rows) == 4 and rows["top1"].isna().all()
    assert set(equal.loc[equal["equal"] == "updates", "batch"]) == {64}


def test_without_runs_every_table_is_empty() -> None:
    nothing = pd.DataFrame([a_run(64, 0.01, 2, 8.0, 0.5, 1)]).iloc[:0].drop(columns="train_s")
    runs = batch_runs.described(nothing, pd.DataFrame({"record": [], "steps": [], "train_s": []}))
    assert runs.empty and batch_runs.equalled(runs).empty
