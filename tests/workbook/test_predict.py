"""Tests of predictions: what enters them, what is refused, and the guarantee for devices that were left out."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import labkit
import workbook
from labkit.errors import UserError
from workbook.hardware.profile import load_profile
from workbook.prediction import coverage, left_out, load_published, predict
from workbook.prediction.device import refused
from workbook.prediction.guarantee import left_out_within_chips, times_of
from workbook.prediction.laws import COVERED, exponents
from workbook.results import load

GOOD = """
source: {title: a, repository: b, commit: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, place: c, licence: MIT}
set_up: a loop
comparable: rows
metric: step_s
unit: ms
to_si: 0.001
precision: fp32
devices:
  - {name: A, profile: h100, year: 2022}
  - {name: B, flop_per_s: 1e13, memory_bytes_per_s: 1e12, year: 2016, source: a datasheet}
rows: {network: [1.0, 4.0]}
"""


def published(folder: Path, text: str) -> list[Any]:
    (folder / "mine.yaml").write_text(text)
    return load_published(folder)


def test_a_published_table_has_seconds_beside_the_peaks_of_its_devices(tmp_path: Path) -> None:
    (table,) = published(tmp_path, GOOD)
    frame = table.frame().set_index("device")
    assert frame["seconds"].to_dict() == {"A": 0.001, "B": 0.004}
    assert frame.loc["A", "flop_per_s"] == load_profile("h100").peaks.flop_per_s["fp32"].value
    rates = GOOD.replace("step_s", "samples_per_s").replace("0.001", "1")
    (table,) = published(tmp_path, rates)
    assert table.frame()["seconds"].tolist() == [1.0, 0.25]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[1.0, 4.0]", "[1.0]", "1 values for 2 devices"),
        ("licence: MIT", "licence: none", "'MIT', 'Apache-2.0'"),
        ("profile: h100", "profile: h1000", "no profile h1000"),
        (", source: a datasheet", "", "either a profile, or peaks with their source"),
        ("precision: fp32\n", "", "has no precision"),
    ],
)
def test_a_published_table_that_does_not_fit_gets_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UserError, match=r"published/mine\.yaml") as raised:
        published(tmp_path, GOOD.replace(old, new))
    assert said in str(raised.value) or said in str(raised.value).lower()


def made_times(noise: float = 0.0) -> pd.DataFrame:
    """Return times of six devices by the law itself, with noise."""
    generator, rows = np.random.default_rng(1), []
    for number in range(6):
        flop, memory = 1e13 * (number + 1) ** 1.5, 1e11 * (6 - number)
        for workload in range(8):
            seconds = (workload + 1) * flop**-0.3 * memory**-0.6 * np.exp(noise * generator.standard_normal())
            rows.append(("made", f"w{workload}", f"d{number}", "fp32", 2016 + number, seconds, flop, memory))
    columns = ["table", "workload", "device", "precision", "year", "seconds", "flop_per_s", "bytes_per_s"]
    return pd.DataFrame(rows, columns=columns)


def test_the_exponents_of_a_made_law_are_found() -> None:
    assert exponents(made_times()) == pytest.approx((0.3, 0.6))


def test_nothing_of_a_device_enters_its_prediction_or_interval() -> None:
    tables = load_published()
    before = left_out(tables).query("device == 'L4'")
    changed = [
        table.model_copy(
            update={
                "rows": {
                    name: [
                        10 * value if value and device.name == "L4" else value
                        for value, device in zip(row, table.devices, strict=True)
                    ]
                    for name, row in table.rows.items()
                }
            }
        )
        for table in tables
    ]
    after = left_out(changed).query("device == 'L4'")
    for column in ("predicted", "low", "high"):
        assert after[column].tolist() == pytest.approx(before[column].tolist())
    assert (after["measured"].to_numpy() / before["measured"].to_numpy()) == pytest.approx(10.0)


def test_the_promised_share_lies_in_the_interval_of_the_measured_coverage() -> None:
    cases = left_out()
    whole = coverage(cases.assign(all="all"), "all").iloc[0]
    assert whole["low"] <= COVERED <= whole["high"]
    assert whole["cases"] > 200 and whole["devices"] > 10
    assert whole["median_error"] < 0.2
    assert 0 < whole["covered"] < 1, "an interval that contains everything promises nothing"


@pytest.mark.usefixtures("committed")
def test_within_a_chip_predictions_of_recorded_traces_err_by_a_few_percent() -> None:
    cases = left_out_within_chips()
    errors = (cases["predicted"] / cases["measured"] - 1).abs()
    assert {*zip(cases["source"], cases["device"], strict=True)} >= {("h100", "h200"), ("h200", "h100")}
    assert errors.median() < 0.03
    assert errors.max() < 0.1


@pytest.mark.usefixtures("committed")
def test_a_prediction_of_recorded_traces_contains_most_measured_times() -> None:
    made = predict(load("h100", "profile"), to="h200").query("reason == ''")
    there = load("h200", "profile")
    busy = there.kernels().groupby("record")["seconds"].sum()
    measured = there.frame().assign(busy_s=there.frame()["record"].map(busy)).dropna(subset=["busy_s"])
    keys = ["model", "batch", "image_px", "mode", "traced_iterations", "steps_before", "learning_rate", "devices"]
    both = made.merge(measured.groupby(keys)["busy_s"].mean().reset_index(), on=keys, suffixes=("", "_there"))
    assert len(both) > 20
    inside = (both["low_s"] <= both["busy_s_there"]) & (both["busy_s_there"] <= both["high_s"])
    assert inside.mean() > 0.6


CASE = {"precision": "bf16", "devices": 1, "reader": "own", "memory_bytes": 2.0**30}
KERNELS = pd.DataFrame({"kernel_class": ["convolution"], "seconds": [1e-3], "count": [10]})


@pytest.mark.parametrize(
    ("fields", "target", "said"),
    [
        ({}, "l40s", ""),
        ({"precision": "bf16"}, "t4", "has no peak of BF16"),
        ({"memory_bytes": 30 * 2.0**30}, "l4", "memory of 30 GiB does not fit"),
        ({"devices": 4}, "l40s", "several devices"),
        ({"reader": "webdataset"}, "l40s", "a loader"),
        ({}, "b200", "no device that predictions rest on has the chip generation"),
        ({}, "cpu", "only GPUs"),
    ],
)
def test_what_cannot_be_predicted_says_why(fields: dict[str, Any], target: str, said: str) -> None:
    reason = refused({**CASE, **fields}, load_profile("h200"), load_profile(target), KERNELS)
    assert (said in reason) if said else not reason
    assert "no trace" in refused(CASE, load_profile("h200"), load_profile("l40s"), KERNELS.iloc[:0])


def test_all_published_devices_have_peaks_or_say_so() -> None:
    times = times_of(load_published())
    assert set(times["table"]) == {"milabench", "neusight", "timm"}
    assert (times["seconds"] > 0).all()


def test_no_module_hides_a_public_name() -> None:
    """Importing a module binds its name in its package, where it would take the place of a function."""
    for package in (workbook, labkit):
        assert not [name for name in package.__all__ if find_spec(f"{package.__name__}.{name}")]
