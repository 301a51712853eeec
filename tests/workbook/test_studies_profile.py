"""Tests of study 09_profile on made-up tables: the parts of a training step, and what limits the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from tests.workbook.made_records import NOISE, PASSES, blocks, of_records
from tests.workbook.made_traces import STUDY, ceiling, kernel_s, traced
from workbook.claims import judge_all
from workbook.claims.evidence import Evidence
from workbook.claims.papers import load_papers
from workbook.hardware.profile import load_profile
from workbook.results import Results, ratio
from workbook.results.columns import WHAT_RAN
from workbook.studies import free_speed, profile, requests
from workbook.studies.free_speed import one_change, which_change
from workbook.study import OpenStudy, open_study
from workbook.trials.recipes import in_precision
from workbook.trials.trial import Trial

ASKED: dict[str, Any] = {"traced_iterations": 20}
NAN = float("nan")


def run(**fields: Any) -> dict[str, Any]:
    """Return a row of results. By default it is of a training on a GPU with counters."""
    trial = {"workload": "train", "mode": "strict FP32", "model": "resnet50", "image_px": 32, "batch": 64}
    trial |= {"device": "cuda", "devices": 1, "precision": "fp32", "learning_rate": Trial().learning_rate, **ASKED}
    measured = {"steps_before": 0, "host": "a", "pass_number": 1, "record": "r", "step_s": 0.01, "arithmetic_s": NAN}
    measured |= {"compute_utilisation": 0.9, "waiting_share": 0.05, "traffic_s": NAN, "dram_activity": 0.2}
    return trial | measured | dict.fromkeys(profile.PIPES, 0.1) | fields


def passes(*waiting: float, **fields: Any) -> pd.DataFrame:
    """Return a row per pass, with these shares of waiting."""
    return pd.DataFrame([run(pass_number=n, waiting_share=w, **fields) for n, w in enumerate(waiting, 1)])


WITHOUT_COUNTERS = dict.fromkeys(("dram_activity", *profile.PIPES), NAN)


@pytest.mark.parametrize(
    ("word", "frame"),
    [
        (profile.LAUNCH, passes(0.5, 0.51, 0.52)),
        (profile.OVERHEAD, passes(0.5, 0.51, 0.52, device="cpu")),
        (profile.INCONCLUSIVE, passes(0.1, 0.25, 0.3)),
        (profile.LAUNCH, passes(0.3)),  # a single pass has no interval that could contain the threshold
        (profile.MEMORY, passes(0.05, 0.05, dram_activity=0.7, fp32_activity=0.6)),
        (profile.COMPUTE, passes(0.05, 0.05, dram_activity=0.3, tensor_activity=0.6)),
        (profile.NO_UNIT, passes(0.05, 0.05, dram_activity=0.5, fp32_activity=0.5)),
        (profile.LAUNCH, passes(0.5, 0.51, dram_activity=0.7)),  # waiting takes precedence
        (profile.COMPUTE, passes(0.05, 0.05, arithmetic_s=0.004, traffic_s=0.002, **WITHOUT_COUNTERS)),
        (profile.MEMORY, passes(0.05, 0.05, arithmetic_s=0.002, traffic_s=0.004, **WITHOUT_COUNTERS)),
        (profile.UNKNOWN, passes(0.05, 0.05, arithmetic_s=0.002, traffic_s=0.002, **WITHOUT_COUNTERS)),
        (profile.UNKNOWN, passes(0.05, 0.05, **WITHOUT_COUNTERS)),
        (profile.UNKNOWN, passes(NAN, NAN)),
    ],
)
def test_each_verdict_of_the_rule_follows_from_its_conditions(word: str, frame: pd.DataFrame) -> None:
    assert profile.bounds(frame, ["model"])["bound_by"].tolist() == [word]


def test_the_activity_of_a_unit_is_relative_to_the_time_of_kernels() -> None:
    limits = profile.bounds(passes(0.1, 0.1, compute_utilisation=0.5, fp32_activity=0.4), ["model"])
    assert limits["busiest"].tolist() == [pytest.approx(0.8)]
    assert limits["bound_by"].tolist() == [profile.COMPUTE]


def test_a_step_without_a_trace_has_no_known_limit() -> None:
    untraced = profile.bounds(passes(NAN, compute_utilisation=NAN), ["model"])
    assert untraced["bound_by"].isna().all()
    assert profile.bounds(passes(0.5).iloc[:0], ["model"]).empty


def test_parts_add_up_to_the_timed_step_and_waiting_is_named_by_the_device() -> None:
    kernels = pd.DataFrame(
        {"record": "r", "kernel_class": ["convolution", "batch_norm", "collective"], "seconds": [0.6, 0.2, 0.2]}
    )
    parts = profile.parts(pd.DataFrame([run(waiting_share=0.08)]), kernels).set_index("part")["step_s"]
    assert parts.sum() == pytest.approx(0.01)
    assert parts["convolution"] == pytest.approx(0.6 * 0.9 * 0.01)
    assert parts[profile.OTHER] == pytest.approx((0.2 * 0.9 + 0.02) * 0.01), "plus time neither busy nor waiting"
    assert parts[profile.WAITING["cuda"]] == pytest.approx(0.0008)
    on_cpu = profile.parts(pd.DataFrame([run(device="cpu", waiting_share=0.1)]), kernels)
    assert profile.WAITING["cpu"] in on_cpu["part"].tolist()
    lacking = profile.parts(pd.DataFrame([run(record="another")]), kernels).set_index("part")["step_s"]
    assert lacking.dropna().index.tolist() == [profile.WAITING["cuda"]], "this record has no kernels"


def test_the_figure_shows_at_most_three_configurations_of_an_optimised_network() -> None:
    rows = [run(batch=batch, step_s=0.01 * batch) for batch in (4, 8, 64, 256)]
    rows += [run(batch=4, mode=mode, step_s=seconds) for mode, seconds in (("CUDA graph", 0.002), ("compiled", 0.001))]
    rows.append(run(model="vgg16", batch=4))
    shown = profile.chosen(profile.trainings(pd.DataFrame(rows)))
    kept = sorted(zip(shown["configuration"], shown["mode"], strict=True))
    name = "ResNet-50, 32 px, batch"
    assert kept == [(f"{name} 4", "compiled"), (f"{name} 4", "strict FP32"), (f"{name} 64", "strict FP32")]
    alone = profile.chosen(profile.trainings(pd.DataFrame([run(batch=4), run(model="vgg16", batch=4)])))
    assert alone["model"].tolist() == ["resnet50", "vgg16"], "without optimised modes every network is shown"


def test_larger_batches_are_left_out_if_the_figure_lacks_room() -> None:
    models = ("alexnet", "resnet18", "resnet50", "vgg16")
    rows = [run(model=name, batch=batch) for name in models for batch in (4, 64)]
    rows += [run(model=name, batch=4, mode="CUDA graph", step_s=0.001) for name in models]
    shown = profile.chosen(profile.trainings(pd.DataFrame(rows)))
    assert len(shown) == profile.MOST_ROWS and set(shown["batch"]) == {4}


def test_trainings_are_on_a_single_device_with_the_default_rate_and_sample() -> None:
    rows = [run(), run(image_px=224), run(learning_rate=0.1), run(devices=2)]
    rows += [run(steps_before=300), run(traced_iterations=5), run(traced_iterations=0)]
    kept = profile.trainings(pd.DataFrame(rows))
    assert kept["network"].tolist() == ["ResNet-50, 224 px", "ResNet-50, 32 px"]


@pytest.fixture(scope="module")
def results() -> Results:
    trials = [Trial(model="vgg16", batch=64, image_px=224, **ASKED), Trial(model="vgg16", batch=64, precision="bf16")]
    trials += [Trial(model="resnet18", traced_iterations=n, steps_before=300) for n in (5, 200)]
    records = [traced(trial, n) for trial in trials for n in PASSES]
    peaks = [Trial(workload="matmul", size=8192), Trial(workload="memory_copy", size=2**32)]
    records += [ceiling(peak, n) for peak in peaks for n in PASSES]
    return Results([of_records(STUDY, records)])


def test_work_is_compared_only_with_measured_peaks_of_its_precision(results: Results) -> None:
    steps = results.frame().merge(profile.work(results), on="record").query("model == 'vgg16'")
    fp32, bf16 = (steps[steps["precision"] == precision] for precision in ("fp32", "bf16"))
    slower = 40 / 50  # rate of the made-up kernels over the made-up peak
    assert (fp32["arithmetic_s"] / kernel_s(Trial(model="vgg16", batch=64, image_px=224))).tolist() == pytest.approx(
        [slower] * len(PASSES), rel=0.05
    )
    assert (fp32["traffic_s"] > 0).all() and bf16[["arithmetic_s", "traffic_s"]].isna().all(axis=None)


def test_samples_of_few_and_many_traced_steps_have_the_same_configuration(results: Results) -> None:
    samples = profile.samples(results.frame(), results.kernels())
    assert set(samples["model"]) == {"resnet18"}
    counts = samples.groupby("sample")["traced_iterations"].unique()
    assert (counts["few"], counts["many"]) == ([5], [200])
    assert samples.groupby("record")["share"].sum().tolist() == pytest.approx([1.0] * 2 * len(PASSES))
    assert set(WHAT_RAN) <= set(samples)


def planned(lab: OpenStudy) -> list[Trial]:
    return profile.traced(lab, lab.sweep) + profile.sampled(lab, lab.sweep)


# ---- free speed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_each_loop_changes_one_field_of_a_baseline_that_is_traced_or_new(scale: str) -> None:
    lab = open_study(STUDY, hw="h200", scale=scale, mode="plan")
    loops = profile.free(lab, lab.sweep)
    assert len(set(loops)) == len(loops) and {trial.processes for trial in loops} == {1}
    changes = pd.Series([which_change(trial.as_dict()) for trial in loops]).groupby([t.image_px for t in loops])
    every = {"", "fused", "channels_last", "tf32"}
    expected = {"smoke": {32: {"", "fused"}}, "quick": {32: every}, "full": {32: every, 224: every}}[scale]
    assert changes.apply(set).to_dict() == expected
    traced_too = requests.shared(lab, profile.traced(lab, lab.sweep) + loops)
    assert len(traced_too) == len(profile.traced(lab, lab.sweep)) + len(loops) - 1, "the baseline at 32 px is one trial"


def test_a_cpu_has_no_such_loops() -> None:
    for scale in ("smoke", "quick", "full"):
        lab = open_study(STUDY, hw="cpu", scale=scale, mode="plan")
        assert profile.free(lab, lab.sweep) == []


SWEEP = load_profile("h200").sweep(STUDY, "quick")
LOOPS = {"fused": Trial(batch=256, **one_change("fused")), "two_cores": Trial(batch=256, host_setting="two_cores")}
BASELINES = [Trial(batch=256, traced_iterations=10), Trial(batch=64, image_px=224)]


def loops(*trials: Trial) -> pd.DataFrame:
    rate = {LOOPS["fused"]: 1100.0, LOOPS["two_cores"]: 900.0}
    made = [blocks(STUDY, trial, n, rate.get(trial, 1000.0) * NOISE[n - 1]) for trial in trials for n in PASSES]
    return free_speed.changed(Results([of_records(STUDY, made)]).frame(), SWEEP)


def test_changed_loops_are_listed_after_their_baseline_and_their_gains_are_paired() -> None:
    others = [Trial(batch=256, engine="compile"), Trial(batch=64), replace(LOOPS["fused"], model="vgg16")]
    rows = loops(*LOOPS.values(), *BASELINES, *others, Trial(batch=256, **in_precision("eager", "tf32")))
    assert rows["change"].unique().tolist() == ["strict FP32", "two cores", "fused SGD"]
    assert set(rows["image_px"]) == {32}, "at 224 px there is only a baseline"
    gains = ratio(rows, "images_per_s", over={"change": "strict FP32"}, by=["image_px", "change"])
    assert gains["value"].tolist() == pytest.approx([0.9, 1.1])
    assert (gains["high"] - gains["low"]).abs().max() < 1e-9, "both sides have the same noise in each pass"


def test_without_changed_loops_there_is_no_baseline_either() -> None:
    shown = loops(*BASELINES)
    assert shown.empty and ratio(shown, "images_per_s", over={"change": "strict FP32"}, by=["image_px", "change"]).empty


# ---- the plan -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
@pytest.mark.parametrize("hw", ["h200", "h200_x8"])
def test_trials_are_distinct_and_traced_and_shared_batches_are_divisible(hw: str, scale: str) -> None:
    lab = open_study(STUDY, hw=hw, scale=scale, mode="plan")
    trials, shared = planned(lab), profile.shared(lab, lab.sweep)
    assert len({trial.key for trial in trials}) == len(trials) > 0
    assert all(trial.traced_iterations and not trial.epochs for trial in trials)
    assert bool(shared) == (lab.profile.device.count > 1 and scale != "smoke")
    assert all(trial.batch % trial.devices == 0 and trial.processes == 1 for trial in shared)


def test_the_trials_at_quick_on_several_gpus_include_those_of_the_claims() -> None:
    trials = planned(open_study(STUDY, hw="h200_x8", mode="plan"))
    records = of_records(STUDY, [traced(trial, n) for n in PASSES for trial in trials], hw="h200_x8")
    seen = Evidence("h200_x8", ("h200_x8",), lambda *_: records)
    judged = {finding.claim.id: finding for finding in judge_all(load_papers(), seen, STUDY)}
    untested = {name for name, finding in judged.items() if finding.verdict == "not testable here"}
    assert untested == set()
    assert len(judged["nyu-learning-rate"].cases) == 1
