"""Tests of the power study: trainings of a minute at the power limit."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from labkit.timing.blocks import ENERGY_WINDOW_S
from workbook.hardware.profile import load_profile
from workbook.runner.plan import passes_of
from workbook.studies import power
from workbook.trials.trial import Trial, grid


def planned(hw: str, scale: str) -> list[Trial]:
    lab = SimpleNamespace(profile=load_profile(hw), scale=scale, trials=grid)
    return power.sustained(lab)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scale", "precisions"), [("smoke", []), ("quick", ["bf16"]), ("full", ["tf32", "fp16", "bf16"])]
)
def test_a_board_with_a_limit_trains_for_a_minute_once_in_each_precision(scale: str, precisions: list[str]) -> None:
    trials = planned("h200", scale)
    assert [trial.precision for trial in trials] == precisions
    for trial in trials:
        assert trial.energy_windows * ENERGY_WINDOW_S == 60 and trial.image_px == 224
        assert passes_of(trial, 3, scale) == 1 and passes_of(Trial(engine="graph", energy_windows=3), 3, scale) == 3


def test_a_device_without_a_power_limit_plans_no_such_training() -> None:
    assert planned("cpu", "full") == []


def test_the_last_seconds_of_a_minute_are_compared_with_the_first() -> None:
    starts = [10.0 * place for place in range(6)]
    slow = pd.DataFrame({"record": "a", "start_s": starts, "steps": 100, "step_s": [0.1, 0.1, 0.2, 0.3, 0.1, 0.11]})
    blocks = pd.concat([slow, slow.assign(record="b", step_s=0.1)])
    about = {"model": "vgg16", "image_px": 224, "energy_windows": 12}
    frame = pd.DataFrame([{"record": "a", "precision": "bf16", **about}, {"record": "b", "precision": "tf32", **about}])
    shares = power.last_over_first(frame, blocks)
    assert shares["precision"].tolist() == ["bf16", "tf32"] and shares["value"].tolist() == pytest.approx([1 / 1.1, 1])
    failed = frame.assign(record="c").head(1)
    assert power.last_over_first(failed, blocks)["value"].isna().tolist() == [True]
    assert power.last_over_first(frame.iloc[:0], blocks.iloc[:0]).empty
