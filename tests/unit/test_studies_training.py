"""Tests of the training study: its counters, bounds, peaks, and the same configurations on other machines."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import labkit
from labkit.hardware.profile import load_profile
from labkit.studies import machines, rooflines, training
from tests.committed import committed_reports

BY = ["model", "batch"]


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """Return the frame of the study's committed records, by device file."""
    monkeypatch.setenv("LABKIT_REPORTS", str(committed_reports()))
    return {hw: labkit.load(hw, "training").frame() for hw in ("h200", "cpu")}


def test_a_gpu_has_two_counters_of_utilisation_and_a_cpu_one(frames: dict[str, pd.DataFrame]) -> None:
    for hw, counters in (("h200", ["utilisation", "SM activity"]), ("cpu", ["CPU utilisation"])):
        shares = training.busy(frames[hw].query("workload == 'train'"), BY)
        assert list(shares["counter"].unique()) == counters
        assert shares["value"].between(1, 100).all()
    assert training.busy(frames["cpu"].iloc[:0], BY).empty


def test_polled_utilisation_is_listed_above_the_printed_values(frames: dict[str, pd.DataFrame]) -> None:
    beside = training.polled(frames["h200"], labkit.load("h200", "training").readings(), "resnet50")
    assert beside["device"].tolist()[:2] == ["NVIDIA H200, batch 64", "NVIDIA H200, batch 256"]
    assert beside["device"].str.endswith("(Wisconsin paper)").sum() == 4
    assert (beside["lowest"] <= beside["mean"]).all() and (beside["mean"] <= beside["highest"]).all()
    without = training.polled(frames["cpu"], labkit.load("cpu", "training").readings(), "resnet50")
    assert len(without) == 4


def test_the_last_loss_is_that_of_the_highest_block_number_with_a_loss() -> None:
    rows = [(1, 2.0), (0, 3.0), (2, None)]
    blocks = pd.DataFrame([{"record": "a", "block": number, "loss": loss} for number, loss in rows])
    ends = training.losses(blocks.assign(model="vgg16", batch=64, steps=2), classes=10).iloc[0]
    assert (ends["first"], ends["last"], ends["images"]) == (3.0, 2.0, 2 * 2 * 64)
    assert ends["guessing"] == pytest.approx(math.log(10))


def test_the_bound_is_throughput_over_the_roofline_fraction(frames: dict[str, pd.DataFrame]) -> None:
    trained = frames["h200"].query("workload == 'train'")
    bounds = rooflines.measured(trained, BY).set_index(BY)["value"]
    of_pass = trained["images_per_s"] / trained["roofline_fraction"]
    for place, passes in of_pass.dropna().groupby([trained[name] for name in BY]):
        assert bounds[place] == pytest.approx(math.exp(passes.map(math.log).mean()), rel=1e-6)
    assert rooflines.measured(trained.assign(precision="bf16"), BY).empty


def test_measured_peaks_are_listed_with_the_vendors_nominal_peaks(frames: dict[str, pd.DataFrame]) -> None:
    gpu, cpu = (rooflines.peaks(frames[hw], load_profile(hw)) for hw in ("h200", "cpu"))
    assert (gpu["measured"] < gpu["nominal"]).all()
    assert cpu["measured"].notna().all() and cpu["nominal"].isna().all()
    assert rooflines.peaks(frames["cpu"].iloc[:0], load_profile("cpu"))["measured"].isna().all()


def test_configurations_that_several_machines_ran_are_compared(frames: dict[str, pd.DataFrame]) -> None:
    trained = frames["h200"].query("workload == 'train'")
    same = machines.same_configurations(trained, "h200")
    assert set(same["machine"]) == {machines.HERE, machines.ELSEWHERE}
    assert set(same.loc[same["machine"] == machines.HERE, "host"]) == set(trained["host"])
    rates = pd.DataFrame({"model": ["a", "a", "a", "b"], "host": [1, 1, 2, 1], "images_per_s": [1.0, 3.0, 8.0, 5.0]})
    assert machines.spread(rates, "images_per_s", ["model"]).to_dict("records") == [
        {"model": "a", "value": 4.0, "machines": 2}
    ]
