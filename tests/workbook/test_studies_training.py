"""Tests of the training study: its counters, bounds, peaks, and the same configurations on other machines."""

from __future__ import annotations

import math

import pandas as pd
import pytest

import workbook
from workbook.hardware.profile import load_profile
from workbook.studies import machines, rooflines, training
from workbook.studies.values import told

BY = ["model", "batch"]


@pytest.fixture
def frames(committed: None) -> dict[str, pd.DataFrame]:
    """Return the frame of the study's committed records, by device file."""
    baseline = "workload != 'train' or (mode == 'strict FP32' and image_px == 32)"
    return {hw: workbook.load(hw, "training").frame().query(baseline) for hw in ("h200", "cpu")}


def test_a_gpu_has_two_counters_of_utilisation_and_a_cpu_one(frames: dict[str, pd.DataFrame]) -> None:
    for hw, counters in (("h200", ["utilisation", "SM activity"]), ("cpu", ["CPU utilisation"])):
        shares = training.busy(frames[hw].query("workload == 'train'"), BY)
        assert list(shares["counter"].unique()) == counters
        assert shares["value"].between(1, 100).all()
    assert training.busy(frames["cpu"].iloc[:0], BY).empty


def test_the_last_loss_is_that_of_the_highest_block_number_with_a_loss() -> None:
    rows = [(1, 2.0), (0, 3.0), (2, None)]
    blocks = pd.DataFrame([{"record": "a", "block": number, "loss": loss} for number, loss in rows])
    ends = training.losses(blocks.assign(model="vgg16", batch=64, steps=2), classes=10, by=BY).iloc[0]
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
    named = gpu[gpu["peak"] != "launch rate, thousand launches/s"]
    assert (named["measured"] < named["nominal"]).all() and len(gpu) - len(named) == 1
    assert cpu["measured"].notna().all() and cpu["nominal"].isna().all()
    assert rooflines.peaks(frames["cpu"].iloc[:0], load_profile("cpu"))["measured"].isna().all()


def test_configurations_that_several_machines_ran_are_compared(frames: dict[str, pd.DataFrame]) -> None:
    trained = frames["h200"].query("workload == 'train'")
    same = machines.same_configurations(trained, "h200")
    assert set(same["whose"]) == {machines.HERE, machines.ELSEWHERE}
    assert set(same.loc[same["whose"] == machines.HERE, "host"]) == set(trained["host"])


def test_a_value_is_over_three_machines_that_have_it_or_of_the_pages_machine() -> None:
    rates = {"a": (1.0, 2.0), "b": (1.1, 2.2), "c": (1.2, 2.4), "d": (1.3, None)}
    rows = pd.DataFrame(
        [
            {"model": "vgg16", "mode": mode, "host": host, "rate": rate}
            for host, of_host in rates.items()
            for mode, rate in zip(("slow", "fast"), of_host, strict=True)
        ]
    )

    def hosts(rows: pd.DataFrame, by: list[str], page: str, sides: str = "") -> dict[str, str]:
        pooled = machines.pool(rows, "rate", by, here=rows[rows["host"] == page], sides=sides)
        return pooled.groupby("mode")["host"].agg("".join).to_dict()

    assert hosts(rows, ["model", "mode"], "a") == {"slow": "abcd", "fast": "abc"}
    assert hosts(rows, ["model"], "a", "mode") == {"slow": "abc", "fast": "abc"}, "d has one side alone"
    assert hosts(rows, ["model", "mode"], "d") == {"slow": "abcd", "fast": "abcd"}, (
        "the page's row says why it has none"
    )
    two = rows[rows["host"].isin(["a", "b", "d"])]
    assert hosts(two, ["model"], "b", "mode") == {"slow": "b", "fast": "b"}
    assert hosts(two, ["model", "mode"], "b") == {"slow": "abd", "fast": "b"}


def test_equals_ran_a_pages_configurations_on_equal_machines_for_less_than_a_minute(
    frames: dict[str, pd.DataFrame],
) -> None:
    here = frames["h200"].query("energy_windows == 0 and model == 'vgg16'").head(3)
    same = {"metered": {"energy_windows": 3}, "timed": {}}
    other = {
        "minute": {"energy_windows": 12},
        "old": {"protocol": 2},
        "cpu": {"machine": "another"},
        "net": {"batch": 7},
    }
    every = pd.concat([here, *(here.assign(host=host, **changed) for host, changed in (same | other).items())])
    equals = machines.of_equals(every, here)
    assert set(equals["host"]) == {*here["host"], *same}
    assert equals["energy_windows"].value_counts().to_dict() == {0: 6, 3: 3}, "the rows are as they were"


def on_hosts(number: int, **changed: object) -> pd.DataFrame:
    """Return the runs of two configurations on some equal machines; `changed` replaces columns of the last one."""
    rows = [
        {"mode": mode, "host": f"host{place}", "profile": "p", "study": "s", "pass_number": run, "status": "ok"}
        | {"started_at": f"2026-01-0{place}T00:00:00", "machine": "equal", "protocol": 3, "scale": "quick"}
        | {"images_per_s": rate * place * (1 + run / 100)}
        | (changed if place == number else {})
        for mode, rate in (("strict FP32", 100.0), ("CUDA graph", 1000.0))
        for place in range(1, number + 1)
        for run in (1, 2, 3)
    ]
    return pd.DataFrame(rows)


def as_headlines(runs: pd.DataFrame) -> pd.DataFrame:
    of_training = {"workload": "train", "epochs": 0, "energy_windows": 0, "busy_step_s": 0.01}
    return runs.assign(energy_per_image_j=float("nan"), **of_training)


def test_headline_numbers_are_over_three_equal_machines_or_of_the_newest() -> None:
    by = ["mode"]
    three, two = (machines.headlines(as_headlines(on_hosts(number)), by)["images_per_s"] for number in (3, 2))
    baseline = three.set_index("mode").loc["strict FP32"]
    assert baseline["value"] == pytest.approx(102 * 6 ** (1 / 3), rel=1e-3) and baseline["hosts"] == 3
    assert (baseline["machines"], baseline["apart"]) == (3, pytest.approx(3))
    assert baseline["apart_low"] < baseline["apart"] < baseline["apart_high"]
    newest = two.set_index("mode").loc["strict FP32"]
    assert newest["value"] == pytest.approx(2 * 102, rel=1e-3)
    assert (newest["hosts"], newest["machines"], newest["apart"]) == (1, 2, pytest.approx(2))
    other = machines.headlines(as_headlines(on_hosts(2, machine="other")), by)["images_per_s"]
    assert set(other["machines"]) == {1}, "unequal machines are not compared"


@pytest.mark.parametrize("number", [2, 3])
def test_machines_with_one_run_each_have_a_range_without_an_interval(number: int) -> None:
    one_run = as_headlines(on_hosts(number)).query("pass_number == 1")
    between = machines.between(machines.headlines(one_run, ["mode"])["images_per_s"])
    assert between["low"].isna().all() and between["low"].dtype == between["high"].dtype == float
    assert told(between, "times", mode="strict FP32") == f"about {number}.0 times"


def test_a_sensor_that_reads_zero_on_equal_machines_has_no_ratio() -> None:
    unread = as_headlines(on_hosts(3)).assign(energy_per_image_j=0.0)
    shown = machines.headlines(unread, ["mode"])["energy_per_image_j"]
    assert shown["value"].tolist() == [0.0, 0.0] and shown[["apart", "apart_low", "apart_high"]].isna().all(axis=None)


def test_energy_has_runs_of_its_own_and_gives_no_throughput() -> None:
    timed = as_headlines(on_hosts(1))
    metered = timed.assign(energy_windows=3, images_per_s=1.0, energy_per_image_j=0.02)
    shown = machines.headlines(pd.concat([timed, metered]), ["mode"])
    assert shown["images_per_s"]["value"].min() > 100
    assert shown["energy_per_image_j"]["value"].tolist() == pytest.approx([0.02, 0.02])
    names = list(machines.columns(shown))
    assert names[:2] == ["images/s", "images/s, machines apart"] and len(names) == 2 * len(machines.HEADLINES)
    assert machines.columns(shown)["images/s, machines apart"]["value"].isna().all(), "one machine has no range"


def test_without_runs_there_are_no_headline_numbers() -> None:
    shown = machines.headlines(as_headlines(on_hosts(1)).iloc[:0], ["mode"])
    assert all(rows.empty for rows in shown.values())


def metered(number: int, energy_j: float = 0.004, **changed: object) -> pd.DataFrame:
    """Return the metered runs of a CUDA graph on some boards, each of which takes 5 % more than the one before."""
    runs = as_headlines(on_hosts(number, **changed)).query("mode == 'CUDA graph'")
    steps = runs["host"].str[-1].astype(int) - 1
    about = {"model": "vgg16", "image_px": 32, "batch": 64, "device": "cuda", "engine": "graph", "sm_clock_hz": 1.9e9}
    columns = {name: value for name, value in about.items() if name not in changed}
    return runs.assign(
        **columns, **changed, energy_per_image_j=energy_j * 1.05**steps, precision="bf16", size=0, power_w=9.0
    )


def products(number: int) -> pd.DataFrame:
    """Return the matrix products of the boards of `metered`, whose power differs as their energy does."""
    watts = 500.0 * 1.05 ** (on_hosts(number)["host"].str[-1].astype(int) - 1)
    return on_hosts(number).assign(workload="matmul", precision="fp32", size=8192, power_w=watts, epochs=0)


def test_energy_of_several_boards_is_a_range_and_relative_to_their_matrix_products_it_is_none() -> None:
    measured = machines.metered(pd.concat([metered(3), products(3)]))
    by = ["model", "image_px"]
    assert machines.span_text(machines.spans(measured, machines.ENERGY, by), "mJ", 1e3) == "4.0 to 4.4 mJ (3 machines)"
    assert machines.apart_at_same_clock(measured) == pytest.approx(1.05**2 - 1)
    assert machines.apart_at_same_clock(measured, machines.RELATIVE) == pytest.approx(0, abs=1e-9)
    shown = machines.of_boards(pd.concat([metered(3), products(3)]), by).iloc[0]
    assert (shown["machines"], shown["energy"], shown["relative"]) == (3, "4.0 to 4.4", "8.0")


def test_only_boards_of_the_newest_protocol_at_one_clock_are_compared() -> None:
    capped = metered(3).assign(sm_clock_hz=lambda runs: runs["sm_clock_hz"].where(runs["host"] != "host3", 1.8e9))
    assert machines.apart_at_same_clock(machines.metered(capped)) == pytest.approx(0.05)
    eager = metered(3).assign(engine="eager")
    assert math.isnan(machines.apart_at_same_clock(machines.metered(eager))), "the host sets an eager loop's energy"
    assert math.isnan(machines.apart_at_same_clock(machines.metered(metered(1))))
    older = metered(2).assign(protocol=2, energy_per_image_j=9.0, host=["a", "b"] * 3)
    newest = machines.spans(machines.metered(pd.concat([metered(2), older])), machines.ENERGY, ["mode"])
    assert newest["machines"].tolist() == [2] and newest["high"].max() < 9


def test_energy_over_a_matrix_product_without_power_says_so() -> None:
    shown = machines.of_boards(metered(2), ["model"]).iloc[0]
    assert shown["energy"] == "4.0 to 4.2" and "no power of the matrix product" in shown["relative"]
    assert machines.of_boards(metered(2).iloc[:0], ["model"]).empty
    assert machines.span_text(machines.spans(metered(1), machines.ENERGY, ["model"]), "mJ") == ""


def test_a_step_is_split_into_the_devices_part_and_the_hosts() -> None:
    frame = pd.DataFrame({"pass_number": [1, 2, 3], "step_s": [0.03, 0.02, 0.01], "busy_step_s": [0.01, None, 0.011]})
    parts = training.device_and_host(frame).set_index(["pass_number", "part"])["step_s"]
    assert parts.to_dict() == {
        (1, training.DEVICE_PART): 0.01,
        (3, training.DEVICE_PART): 0.01,
        (1, training.HOST_PART): pytest.approx(0.02),
        (3, training.HOST_PART): 0.0,
    }
