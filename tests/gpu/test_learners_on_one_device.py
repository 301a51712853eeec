"""Learners that share one real GPU train together over Gloo, and their records say that they used one GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.data import open_data
from tests.gpu.test_ranks_on_device import assert_ok, run
from workbook.hardware.host import this_host
from workbook.records import Epochs
from workbook.trials.recipes import runs_on
from workbook.trials.trial import Trial

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LEARNERS = 4


def test_four_learners_train_one_network_on_one_gpu(tmp_path: Path) -> None:
    host = this_host()
    data = open_data("digits")
    one = Trial(model="resnet18", batch=64, classes=10, epochs=3, data=data.name, data_checksum=data.checksum)
    several = [replace(one, placement="together", **recipe) for recipe in runs_on(LEARNERS, one.learning_rate)]
    alone, *made = run(host, [one, *several], tmp_path)
    assert_ok([alone, *made])
    for trial, record in zip(several, made, strict=True):
        assert record.devices_used == 1 and record.as_trial.devices == LEARNERS
        assert isinstance(record.result, Epochs)
        first, *_, last = record.result.epochs
        assert (first.steps, first.images) == (-(-1500 // trial.batch_of_step), first.steps * trial.batch_of_step)
        if trial.updates == "synchronous":  # stale gradients raise the loss at first
            assert record.facts["gate"]["change_difference"] <= record.facts["gate"]["change_tolerance"]
            assert last.train_loss < first.train_loss
