"""Tests of metrics from telemetry: sums and means over devices, energy per image, and missing values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.telemetry.summary import EnergyWindow, Telemetry
from tests.workbook.made_telemetry import (
    IDLE,
    R50,
    WINDOW_S,
    board,
    hopper,
    lost_once,
    made,
    of,
    on,
    read,
    shown,
    told,
    two_gpus,
    with_rapl,
)
from workbook.results import Results
from workbook.results.intervals import interval_of
from workbook.results.study_records import StudyRecords
from workbook.statistics import Interval
from workbook.trials.trial import Trial


def interval(records: StudyRecords, metric: str, trial: Trial = R50) -> Interval | None:
    """Return the mean of a metric over the passes of a trial with its interval, for any device of the profile."""
    frame = Results([records]).frame()
    same = frame[(frame["workload"] == trial.workload) & (frame["model"].fillna(trial.model) == trial.model)]
    return interval_of(same[metric].dropna(), metric)


def value(records: StudyRecords, metric: str, trial: Trial = R50) -> float | None:
    mean = interval(records, metric, trial)
    return mean.point if mean else None


def test_energy_per_image_is_the_energy_of_all_windows_over_their_images() -> None:
    long, short = (
        EnergyWindow(start_s=0.0, length_s=6.0, images=3000, energy_j={"gpu0": 900.0}),
        EnergyWindow(start_s=6.0, length_s=5.0, images=1000, energy_j={"gpu0": 700.0}),
    )
    records = shown(made(R50, 1, hopper(R50).model_copy(update={"energy": [long, short]})))
    assert value(records, "energy_per_image_j") == pytest.approx(1600 / 4000), "not the mean of 0.3 and 0.7"


def test_net_energy_subtracts_the_idle_trial_of_the_same_pass() -> None:
    def idle_at(w: float) -> Telemetry:
        return told({"gpu0": read(power_w=w)}, {"gpu0": w * WINDOW_S}, images=None)

    passes = {1: 100.0, 2: 200.0}
    trained = [made(R50, n, hopper(R50)) for n in passes]
    records = shown(*trained, *[made(IDLE, n, idle_at(w)) for n, w in passes.items()])
    frame = Results([records]).frame().query("workload == 'train'").set_index("pass_number")
    assert frame["net_energy_per_image_j"].to_dict() == pytest.approx({1: 300 * 5 / 1000, 2: 200 * 5 / 1000})
    assert value(of(hopper), "energy_per_image_j") == pytest.approx(2.0)
    assert value(of(hopper), "net_energy_per_image_j") == pytest.approx(1.5)


def test_without_an_idle_trial_in_the_pass_there_is_no_net_energy() -> None:
    records = shown(made(R50, 1, hopper(R50)), made(IDLE, 2, hopper(IDLE)))
    assert value(records, "net_energy_per_image_j") is None
    assert value(records, "energy_per_image_j") == pytest.approx(2.0)


def test_an_unknown_window_gives_no_energy_per_image_and_never_0() -> None:
    windows = hopper(R50).energy
    hole = windows[1].model_copy(update={"energy_j": {"gpu0": None}})
    records = shown(made(R50, 1, hopper(R50).model_copy(update={"energy": [windows[0], hole, windows[2]]})))
    assert value(records, "energy_per_image_j") is None
    (reason,) = Results([records]).reasons()["energy_per_image_j"]
    assert reason


def test_an_idle_trial_has_no_energy_per_image() -> None:
    assert value(of(hopper), "energy_per_image_j", IDLE) is None
    assert value(of(hopper), "images_per_s_per_w", IDLE) is None


def test_efficiency_is_images_per_second_over_watts() -> None:
    assert value(of(hopper), "images_per_s_per_w") == pytest.approx(100 * 10 * 10 / 5 / 400)


def test_rapl_packages_are_summed_without_their_memory_zones() -> None:
    records = of(with_rapl, "cpu")
    assert value(records, "power_w") == pytest.approx(500 / 5)
    assert value(records, "energy_per_image_j") == pytest.approx(0.5)
    assert value(records, "net_energy_per_image_j") == pytest.approx(0.5 - 20 * 5 / 1000)


def test_without_a_reading_of_every_package_there_is_no_power_or_energy() -> None:
    cpu = on(R50, "cpu")
    records = shown(made(cpu, 1, told({}, {"rapl:package-0": 100.0, "rapl:package-1": None})), hw="cpu")
    assert value(records, "power_w") is None and value(records, "energy_per_image_j") is None


def test_the_platform_meter_is_not_added_to_the_packages() -> None:
    records = shown(made(on(R50, "cpu"), 1, told({}, {"rapl:package-0": 100.0, "rapl:psys": 150.0})), hw="cpu")
    assert value(records, "power_w") == pytest.approx(20.0)


def test_power_of_several_gpus_is_summed_and_their_utilisation_averaged() -> None:
    records = of(two_gpus, "h200_x2")
    assert value(records, "power_w") == pytest.approx(600)
    assert value(records, "power_fraction") == pytest.approx(600 / (2 * 700))
    assert value(records, "utilisation") == pytest.approx(0.7)
    assert value(records, "energy_per_image_j") == pytest.approx(3.0)


def test_extremes_are_over_all_devices_and_readings() -> None:
    timed = Results([of(two_gpus, "h200_x2", passes=1)]).readings().query("window == 'timed' and model == 'resnet50'")
    lowest, highest = (timed.set_index("metric")[end] for end in ("lowest", "highest"))
    assert (lowest["power_w"], highest["power_w"]) == pytest.approx((540, 660))
    assert (lowest["utilisation"], highest["utilisation"]) == pytest.approx((0.45, 0.99))


@pytest.mark.parametrize("metric", ["power_w", "sm_activity"])
def test_without_a_reading_of_every_board_there_is_no_sum_or_mean(metric: str) -> None:
    half = told({"gpu0": board(R50), "gpu1": read(utilisation=0.5)}, {}, missing={"gpu1": {metric: "lost"}})
    records = shown(made(R50, 1, half), hw="h200_x2")
    assert value(records, metric) is None
    assert value(records, "utilisation") is not None, "both boards have this metric"


def test_a_trial_over_nodes_has_no_sums_because_only_the_first_node_is_sampled() -> None:
    over_nodes = replace(R50, devices=4, nodes=2)
    records = shown(made(over_nodes, 1, two_gpus(over_nodes)), hw="h200_x2")
    for metric in ("power_w", "energy_per_image_j", "images_per_s_per_w"):
        assert value(records, metric) is None
    assert value(records, "utilisation") == pytest.approx(0.7), "the mean of the first node's devices"


def test_a_pass_with_lost_telemetry_is_left_out_of_the_mean_with_a_reason() -> None:
    power = interval(of(lost_once), "power_w")
    assert power is not None and (power.point, power.n) == (pytest.approx(400), 2)
    reasons = Results([of(lost_once)]).reasons().query("workload == 'train' and pass_number == 2")
    assert reasons["power_w"].str.contains("SIGKILL").all()
