"""Tests of study 06_cpu_vs_gpu: baseline and fastest mode of each processor, scaling over threads, prices, claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from tests.workbook.made_records import NOISE, PASSES, blocks, failed, of_records
from workbook.claims import Evidence, Finding, judge_all
from workbook.claims.papers import load_papers
from workbook.hardware.profile import Cost, Sourced, load_profile
from workbook.records import Record
from workbook.results import Results, estimate, exchange, ratio
from workbook.results.study_records import StudyRecords
from workbook.studies import cpu_vs_gpu, money, published
from workbook.trials.recipes import BF16_ON_CPU, CAPTURED, FUSED_ON_CPU, PREDICTED_BY_OPENVINO
from workbook.trials.trial import Trial

STUDY = "06_cpu_vs_gpu"
LARGE: dict[str, Any] = {"model": "googlenet", "image_px": 224, "batch": 32}
SMALL: dict[str, Any] = {"model": "resnet50", "batch": 64}
INFER: dict[str, Any] = {"workload": "infer", "model": "resnet50", "batch": 256}
RATES = {  # images/s: the GPU trains 20 times as fast; BF16 doubles the CPU's speed, and a fused optimiser does not
    Trial(**LARGE): 100.0,
    Trial(**LARGE, **CAPTURED): 300.0,
    Trial(device="cpu", **LARGE): 5.0,
    Trial(device="cpu", **LARGE, **FUSED_ON_CPU): 4.0,
    Trial(device="cpu", **LARGE, **BF16_ON_CPU): 10.0,
    Trial(**SMALL): 1000.0,
    Trial(device="cpu", **SMALL): 50.0,
    Trial(device="cpu", **SMALL, **FUSED_ON_CPU): 45.0,
    **{Trial(device="cpu", threads=count, **SMALL): rate for count, rate in ((1, 20.0), (2, 38.0), (4, 60.0))},
    Trial(**INFER): 4000.0,
    Trial(device="cpu", **INFER): 40.0,
}
OPENVINO = Trial(device="cpu", **INFER, **PREDICTED_BY_OPENVINO)
PRICES = Cost(
    per_hour=Sourced(value=3.6, source="a list"),
    cpu_per_hour=Sourced(value=0.36, source="another list"),
    currency="EUR",
)


def records(rates: dict[Trial, float] = RATES) -> list[Record]:
    made = [blocks(STUDY, t, n, rate * NOISE[n - 1]) for t, rate in rates.items() for n in PASSES]
    return [*made, *(failed(STUDY, OPENVINO, n, "unsupported", "OpenVINO is not installed") for n in PASSES)]


def rows(of: StudyRecords) -> pd.DataFrame:
    return cpu_vs_gpu.networks(Results([of]).frame())


def priced(cost: Cost | None, boards: int = 1) -> pd.DataFrame:
    """Return the cost per million images of GoogLeNet's baseline at these prices, by device."""
    results = of_records(STUDY, records())
    device = results.profile.device.model_copy(update={"count": boards})
    profile = results.profile.model_copy(update={"cost": cost, "device": device})
    frame = rows(replace(results, profile=profile)).query("model == 'googlenet' and mode == 'strict FP32'")
    return estimate(frame, "cost_per_million_images", by=["device"]).set_index("device")["value"]


def test_rows_name_the_setting_of_both_processors_and_the_configuration_of_each() -> None:
    frame = rows(of_records(STUDY, records()))
    assert list(frame["setting"].unique())[-1] == "inference, 32 px, batch 256", "training first"
    assert frame["configuration"].iloc[0] == "strict FP32"
    assert {"CUDA graph, BF16", "OpenVINO, FP32", "strict FP32, 4 threads"} <= set(frame["configuration"])


def test_ratios_are_between_baselines_and_between_the_fastest_modes() -> None:
    sides = cpu_vs_gpu.sides(rows(of_records(STUDY, records())))
    by = ["model", "setting", "side", "device"]
    gains = ratio(sides, "images_per_s", over={"device": "cpu"}, by=by).set_index(["model", "side"])["value"].to_dict()
    assert gains["googlenet", "strict FP32"] == pytest.approx(20)
    assert gains["googlenet", "optimised"] == pytest.approx(30)
    assert ("resnet50", "optimised") not in gains, "only the baseline was planned on the GPU"


def test_the_fastest_mode_may_be_the_baseline_or_have_other_threads() -> None:
    sides = cpu_vs_gpu.sides(rows(of_records(STUDY, records()))).query("side == 'optimised' and device == 'cpu'")
    chosen = sides.drop_duplicates(["model", "setting"]).set_index(["model", "workload"])
    assert chosen.loc[("resnet50", "train"), "configuration"] == "strict FP32, 4 threads"
    assert chosen.loc[("resnet50", "infer"), "reason"] == "OpenVINO is not installed"
    slow = {trial: rate for trial, rate in RATES.items() if trial.precision == "fp32" and trial.threads < 2}
    sides = cpu_vs_gpu.sides(rows(of_records(STUDY, records(slow)))).query(
        "side == 'optimised' and workload == 'train'"
    )
    assert set(sides["configuration"]) == {"strict FP32"}


def test_a_training_on_several_gpus_is_a_row_and_no_side() -> None:
    four = RATES | {Trial(devices=4, **LARGE): 390.0}
    frame = rows(of_records(STUDY, records(four), hw="p100_16gb_x4"))
    assert "strict FP32, 4 GPUs" in set(frame["configuration"])
    assert set(cpu_vs_gpu.sides(frame)["devices"]) == {1}
    _, on_four = judged(of_records(STUDY, records(four), hw="p100_16gb_x4"))["dell_p100-cpu"].tests
    (case,) = on_four.cases
    assert case.effect is not None and case.effect.point == pytest.approx(390 / 5) and "19.7x" in case.published


def test_no_records_give_no_sides() -> None:
    assert cpu_vs_gpu.sides(rows(of_records(STUDY, []))).empty


def test_linear_scaling_begins_at_the_fewest_threads_of_each_workload() -> None:
    threads = rows(of_records(STUDY, records())).query("threads > 0")
    ideal = cpu_vs_gpu.linear(estimate(threads, "images_per_s", by=["workload", "threads"]), ["workload"])
    assert ideal["threads"].tolist() == [1, 2, 4]
    assert (ideal["value"] / ideal["value"].iloc[0]).tolist() == pytest.approx([1, 2, 4])


def test_prices_give_the_cost_of_a_million_images_per_share_of_the_boards() -> None:
    cost, share = priced(PRICES), priced(PRICES, boards=4)
    assert cost["cuda"] == pytest.approx(1e6 / 100 * 3.6 / 3600, rel=0.01)
    assert cost["cpu"] == pytest.approx(2 * cost["cuda"]), "a tenth of the price, a twentieth of the speed"
    assert share["cuda"] == pytest.approx(cost["cuda"] / 4) and share["cpu"] == cost["cpu"]
    profile = load_profile("h200").model_copy(update={"cost": PRICES})
    listed = money.prices(profile, ("cpu", "cuda"))
    assert listed.values.tolist() == [["CPU", 0.36, "EUR", "another list"], ["GPU", 3.6, "EUR", "a list"]]


def test_trainings_show_their_cost_where_the_device_has_a_price() -> None:
    profile = load_profile("h200").model_copy(update={"cost": PRICES})
    assert list(money.days_and_cost([profile])) == ["90 epochs, days", "EUR per million images", "EUR for 90 epochs"]
    assert list(money.days_and_cost([load_profile("h200")])) == ["90 epochs, days"]
    results = of_records(STUDY, records())
    frame = Results([replace(results, profile=profile)]).frame().query("workload == 'train'")
    ratio = frame["cost_of_90_epochs"] / frame["cost_per_million_images"]
    assert len(ratio) and ratio.tolist() == pytest.approx([90 * 1.2] * len(ratio))


def test_exported_numbers_have_the_cost_in_its_currency(monkeypatch: pytest.MonkeyPatch) -> None:
    results = of_records(STUDY, records())
    profile = results.profile.model_copy(update={"cost": PRICES})
    monkeypatch.setattr(exchange, "load_profile", lambda name: profile)
    numbers = exchange.numbers(Results([replace(results, profile=profile)]))
    assert set(numbers.loc[numbers["metric"] == "cost_per_million_images", "unit"]) == {"EUR"}


def test_without_a_price_the_reason_names_the_fields_to_add() -> None:
    assert list(priced(PRICES.model_copy(update={"cpu_per_hour": None})).index) == ["cuda"]
    assert money.prices(load_profile("h200"), ("cpu", "cuda")).empty, "no price without a source"
    reasons = Results([of_records(STUDY, records())]).reasons()
    given = set(reasons.loc[reasons["status"] == "ok", "cost_per_million_images"])
    assert given == {
        f"prices.yaml has no price of {name}: prices.example.yaml has the form" for name in ("h200", "cpu")
    }
    with pytest.raises(ValueError, match="source"):
        Cost.model_validate({"per_hour": {"value": 1.0}, "currency": "EUR"})


def test_the_printed_ratio_is_of_a_single_gpu() -> None:
    printed = published.speed_ups(STUDY, "device")
    assert printed[["model", "image_px", "device", "value"]].values.tolist() == [["googlenet", 224, "cuda", 5.3]]


def judged(results: StudyRecords) -> dict[str, Finding]:
    profile = results.profile.name
    seen = Evidence(profile=profile, profiles=(profile,), results=lambda *_: results)
    return {finding.claim.id: finding for finding in judge_all(load_papers(), seen, STUDY)}


def test_the_claims_pair_the_same_configuration_on_both_processors() -> None:
    findings = judged(of_records(STUDY, records()))
    assert {name: finding.verdict for name, finding in findings.items()} == {
        "dell_p100-cpu": "replicated",
        "dell_p100-day": "not replicated",  # 12 days on the GPU of these records
        "dell_p100-steady": "replicated",
        "wisconsin-cpu": "replicated",
        "wisconsin-per-watt": "not testable here",  # these records have no energy
    }
    cases = [case for test in findings["wisconsin-cpu"].tests for case in test.cases]
    assert len(cases) == 2, "training and inference; sweeps of threads have no GPU counterpart"
    (case,) = findings["dell_p100-cpu"].tests[0].cases
    assert case.effect is not None and case.effect.point == pytest.approx(20)
    assert "5.30x" in case.published
    faster = RATES | {Trial(device="cpu", **LARGE, **FUSED_ON_CPU): 8.0}
    (case,) = judged(of_records(STUDY, records(faster)))["dell_p100-cpu"].tests[0].cases
    assert case.effect is not None and case.effect.point == pytest.approx(100 / 8), "the CPU's fastest FP32 loop"
    assert findings["dell_p100-day"].mark == "other hardware or data", "a level of the paper's own hardware"


def test_without_a_gpu_the_claims_on_it_are_not_testable() -> None:
    on_cpu = {trial: rate for trial, rate in RATES.items() if trial.device == "cpu"}
    findings = judged(of_records(STUDY, records(on_cpu), hw="cpu"))
    steady = findings.pop("dell_p100-steady")
    assert steady.verdict == "replicated", "the paper trained on a CPU too"
    assert {finding.verdict for finding in findings.values()} == {"not testable here"}
