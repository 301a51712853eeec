"""Tests of the choice of a device: rates by their basis, hours, cost and limits, and what has no rate."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit.errors import UserError
from tests.workbook.made_records import NOISE, PASSES, blocks, failed, of_records
from workbook.hardware.profile import PARAMS, Profile, load_profile
from workbook.prediction.published import Network, load_published
from workbook.results import Results
from workbook.studies import money, which_device
from workbook.studies.profile import LAUNCH, MEMORY, NO_UNIT, UNKNOWN
from workbook.studies.which_device import MEASURED, NONE, PREDICTED, PUBLISHED
from workbook.trials.recipes import COMPILED
from workbook.trials.trial import NO_DATA, Trial

STUDY = "01_training"
TRIAL = Trial(batch=256, image_px=224, **COMPILED)
PROFILES = [load_profile(name) for name in ("cpu", "t4", "l40s", "h100", "h200", "b200")]
BUSY_S = 0.037


def part(hw: str, *trials: Trial, rate: float = 6900.0, busy_s: float = BUSY_S) -> Any:
    """Return the records of trials on a device, each with the seconds of its kernels."""
    made = [blocks(STUDY, trial, number, rate * NOISE[number - 1]) for trial in trials for number in PASSES]
    told = {"busy_step_s": busy_s, "kernels_per_step": 300}
    return of_records(STUDY, [one.model_copy(update={"facts": {**one.facts, **told}}) for one in made], hw)


def rows_of(*parts: Any, **asked: Any) -> pd.DataFrame:
    results = which_device.of_network(Results(parts), "training", "resnet50")
    return which_device.workload(results.frame(), **asked)


def rates_of(rows: pd.DataFrame, profiles: list[Profile] = PROFILES) -> pd.DataFrame:
    kernels = pd.DataFrame({"record": [], "kernel_class": [], "seconds": [], "count": []})
    return which_device.rates(rows, kernels.astype({"record": object}), profiles).set_index("profile")


BOTH = rows_of(part("h200", TRIAL), part("h100", TRIAL, rate=5700.0, busy_s=0.044))


def test_each_rate_says_its_basis_and_what_is_predicted_has_an_interval() -> None:
    rates = rates_of(BOTH)
    assert rates["basis"].to_dict() == {
        **{"h100": MEASURED, "h200": MEASURED, "l40s": PREDICTED},
        **{"cpu": NONE, "t4": NONE, "b200": NONE},
    }
    predicted = rates[rates["basis"] == PREDICTED]
    assert ((predicted["low"] < predicted["value"]) & (predicted["value"] < predicted["high"])).all()
    assert rates.loc["h200", "value"] == pytest.approx(6900, rel=0.02)
    assert rates.loc["l40s", "high"] < rates.loc["h100", "low"], "each peak of the L40S is lower"


def test_a_device_without_a_rate_is_a_row_with_the_reason() -> None:
    reasons = rates_of(BOTH)["reason"]
    assert reasons["t4"] == "no peak of BF16"
    assert reasons["cpu"] == "only GPUs are predicted"
    assert reasons["b200"].startswith("no device that predictions rest on has its chip generation")
    assert reasons["h200"] == reasons["l40s"] == ""
    nothing = rates_of(BOTH.iloc[:0])
    assert len(nothing) == len(PROFILES) and set(nothing["basis"]) == {NONE} and (nothing["reason"] != "").all()


def test_a_failed_run_is_the_reason_and_is_not_replaced_by_a_prediction() -> None:
    records = [failed(STUDY, TRIAL, number) for number in PASSES]
    rates = rates_of(rows_of(part("h200", TRIAL), of_records(STUDY, records, "h100")))
    assert rates.loc["h100", "basis"] == NONE
    assert rates.loc["h100", "reason"] == "out of memory: CUDA out of memory"


def test_a_prediction_rests_on_all_devices_that_measured_the_step() -> None:
    both, single = rates_of(BOTH), rates_of(rows_of(part("h200", TRIAL)))
    assert single.loc["h100", "basis"] == PREDICTED
    assert both.loc["l40s", "value"] != single.loc["l40s", "value"]


def test_a_published_rate_stands_only_where_nothing_else_does_and_has_no_interval() -> None:
    rates = rates_of(rows_of(part("h200", TRIAL)).assign(precision="fp64"))
    assert rates.loc["l40s", ["basis", "value"]].to_list() == [PUBLISHED, 1423.63], "it has no peak of FP64"
    assert pd.isna(rates.loc["l40s", "low"])
    (milabench,) = [table for table in load_published() if table.id == "milabench"]
    network = Network(workload="train", model="resnet50", image_px=224)
    assert milabench.rates(network).set_index("profile")["value"]["l40s"] == 1423.63
    assert milabench.rates(network.model_copy(update={"image_px": 32})).empty


def test_a_device_whose_host_would_set_the_speed_is_not_predicted() -> None:
    waits = BOTH.assign(host_share=0.5, step_s=2 * BUSY_S)
    fast = load_profile("h200").model_copy(update={"name": "faster", "device": load_profile("l40s").device})
    rates = rates_of(waits, [*PROFILES, fast])
    assert rates.loc["h200", "bound_by"] == LAUNCH
    assert rates.loc["faster", ["basis", "reason"]].to_list() == [NONE, which_device.HOST_DECIDES]
    assert rates.loc["l40s", "basis"] == PREDICTED, "its kernels take longer than the host"
    withdrawn = rates_of(BOTH.assign(host_share=float("nan"), step_s=float("nan")), [*PROFILES, fast])
    assert withdrawn.loc["l40s", "basis"] != PREDICTED and withdrawn.loc["l40s", "reason"] == which_device.HOST_DECIDES


def test_what_bounds_a_step_follows_bytes_and_flop_to_another_device() -> None:
    pipes = dict.fromkeys(("fp32_activity", "fp16_activity"), 0.0)
    active = BOTH.assign(host_share=0.0, step_s=BUSY_S, busy_step_s=BUSY_S, tensor_activity=0.2, **pipes)
    rates = rates_of(active.assign(dram_activity=0.5))
    assert rates.loc["h200", "bound_by"] == NO_UNIT
    assert rates.loc["l40s", "bound_by"] == MEMORY, "its bandwidth is a fifth"
    assert set(rates_of(BOTH)["bound_by"]) <= {UNKNOWN, ""}, "nothing counted the units"


def test_the_configuration_that_most_devices_ran_counts_and_of_these_the_fastest() -> None:
    slow, own = replace(TRIAL, batch=64), replace(TRIAL, batch=1024)
    parts = part("h200", slow, TRIAL, own, rate=6900.0), part("h100", slow, TRIAL, rate=5700.0)
    assert set(rows_of(*parts)["batch"]) <= {64, 256} and rows_of(*parts)["batch"].nunique() == 1
    assert set(rows_of(*parts, batch=1024)["batch"]) == {1024}
    with pytest.raises(UserError, match="no row has batch=7"):
        rows_of(*parts, batch=7)


def test_a_network_of_the_user_has_its_rate_in_samples() -> None:
    own = Trial(workload="own_training", model="mine", batch=256, data=NO_DATA)
    results = which_device.of_network(Results([part("h200", TRIAL, own)]), "training", "mine")
    rows = which_device.workload(results.frame(), image_px=224, batch=256)
    assert which_device.title_of(rows, "", 0) == "mine" and not len(which_device.published(rows))
    assert which_device.metric_of(rows) == "samples_per_s" and which_device.metric_of(BOTH) == "images_per_s"
    assert rates_of(rows).loc["h200", "value"] == pytest.approx(6900, rel=0.02)
    answers = which_device.job(rates_of(rows).reset_index(), PROFILES, 1e6)
    assert "samples/s" in which_device.columns(answers, "", "samples_per_s")
    assert set(rows_of(part("h200", TRIAL, own))["workload"]) == {"train"}, "a network recorded in images counts first"


def test_another_task_or_network_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UserError, match="training, inference"):
        which_device.of_network(Results([part("h200", TRIAL)]), "dreaming", "resnet50")
    with pytest.raises(UserError, match="resnet50"):
        which_device.of_network(Results([part("h200", TRIAL)]), "training", "resnet51")
    assert which_device.of_network(Results([part("h200_x2", TRIAL)]), "training", "resnet50").selected == []


# ---- hours, cost and limits -----------------------------------------------------------------------------------------

ANSWERS = pd.DataFrame(
    {
        "device_name": ["A", "B", "C", "D", "E"],
        "profile": ["h200", "l40s", "h100", "t4", ""],
        "basis": [MEASURED, PREDICTED, MEASURED, NONE, PUBLISHED],
        "value": [1000.0, 500.0, 800.0, None, 700.0],
        "low": [990.0, 250.0, None, None, None],
        "high": [1010.0, 1000.0, None, None, None],
        "reason": ["", "", "", "no peak", ""],
        **dict.fromkeys(("bound_by",), ""),
        **dict.fromkeys(("energy", "energy_low", "energy_high"), float("nan")),
    }
)
IMAGES = 3_600_000.0  # an hour at the rate of A


@pytest.fixture
def priced(tmp_path: Path) -> list[Profile]:
    """Return profiles with a made price file beside them."""
    shutil.copytree(PARAMS, tmp_path / "params")
    prices = "currency: EUR\nper_hour:\n  h200: {value: 8, source: a list}\n  l40s: {value: 1, source: a list}\n"
    (tmp_path / "prices.yaml").write_text(prices)
    return [load_profile(name, tmp_path / "params") for name in ("h200", "l40s", "h100", "t4")]


def test_without_prices_devices_are_sorted_by_hours_and_no_cost_is_invented() -> None:
    job = which_device.job(ANSWERS, PROFILES, IMAGES)
    assert job["device_name"].to_list() == ["A", "C", "E", "B", "D"]
    assert job["hours"].to_list()[:2] == [1.0, 1.25] and job[["cost", "price"]].isna().all(axis=None)
    assert job.loc[job["device_name"] == "B", ["hours_low", "hours_high"]].to_numpy().tolist() == [[1.0, 4.0]]
    assert set(job["fits"]) == {""}
    assert set(which_device.columns(job, "")) == {"images/s", "hours"}


def test_devices_that_lack_a_rate_for_one_reason_share_a_row() -> None:
    job = which_device.job(ANSWERS, PROFILES, IMAGES)
    doubled = pd.concat([job, job.assign(device_name=job["device_name"] + "2")], ignore_index=True)
    short = which_device.by_reason(doubled)
    lacking = short[short["basis"] == which_device.NONE]
    assert (len(short) - len(lacking)) == 2 * (job["basis"] != which_device.NONE).sum()
    reasons = job.loc[job["basis"] == which_device.NONE]
    assert dict(zip(lacking["device_name"], lacking["reason"], strict=True)) == {
        f"{name}, {name}2": reason for name, reason in zip(reasons["device_name"], reasons["reason"], strict=True)
    }
    assert set(which_device.columns(short, "")) == set(which_device.columns(job, ""))


def test_with_prices_devices_are_sorted_by_cost(priced: list[Profile]) -> None:
    job = which_device.job(ANSWERS, priced, IMAGES)
    assert job["device_name"].to_list() == ["B", "A", "C", "E", "D"], "those without a price follow by hours"
    assert job["cost"].to_list()[:2] == [2.0, 8.0]
    assert job.loc[0, ["cost_low", "cost_high"]].to_list() == [1.0, 4.0]
    currency = money.currency_of(priced)
    assert {"EUR an hour", "cost, EUR"} <= set(which_device.columns(job, currency))


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({"deadline_h": 1.1}, {"A": "yes", "B": "perhaps", "C": "no", "D": "", "E": ""}),
        ({"deadline_h": 0.5}, {"A": "no", "B": "no", "C": "no", "D": "", "E": ""}),
        ({"budget": 9.0}, {"A": "yes", "B": "yes", "C": "no price", "D": "", "E": ""}),
        ({"budget": 3.0, "deadline_h": 9.0}, {"A": "no", "B": "perhaps", "C": "no price", "D": "", "E": ""}),
    ],
)
def test_budget_and_deadline_are_kept_missed_or_undecided(
    priced: list[Profile], limits: dict[str, float], fits: dict[str, str]
) -> None:
    job = which_device.job(ANSWERS, priced, IMAGES, **limits)
    assert job.set_index("device_name")["fits"].to_dict() == fits
    places = [which_device.PLACES.get(answer, 2) for answer in job["fits"]]
    assert places == sorted(places), "devices that keep the limits come first"


def test_every_device_is_listed_with_the_source_of_its_peaks(priced: list[Profile]) -> None:
    printed = which_device.published(BOTH)
    listed = which_device.listed(priced, Results([part("h200", TRIAL)]), printed).set_index("device_name")
    assert listed.loc["H200 SXM", ["peak", "records"]].to_list() == ["990 TFLOP/s, BF16", "studies 01"]
    assert listed.loc["T4", ["records", "published rates", "price"]].to_list() == ["none", "none", "none entered"]
    assert listed.loc["L40S", "price"] == "1 an hour (a list)" and "milabench" in listed.loc["L40S", "published rates"]
