"""Tests of study 11_frameworks: its trials, the fastest modes, cold and warm starts, the paper's table and claims."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.workbook.made_records import NOISE, PASSES, blocks, failed, of_records
from workbook.claims import Evidence, Finding, judge_all
from workbook.claims.papers import load_papers
from workbook.hardware.profile import load_profile
from workbook.records import Record
from workbook.registry import SCALES
from workbook.results import Results, ratio
from workbook.results.study_records import StudyRecords
from workbook.studies import frameworks
from workbook.study import OpenStudy
from workbook.trials.trial import FRAMEWORKS, Trial, grid

STUDY = "11_frameworks"
ONE_S = {"resnet50": 8000.0, "vgg16": 5000.0, "googlenet": 1500.0, "inception_v3": 600.0, "inception_bn": 1200.0}
SPEED = {  # relative to eager PyTorch
    ("torch", "eager"): 1.0,
    ("torch", "compile"): 2.0,
    ("torch", "compile+graph"): 8.0,
    ("keras-torch", "eager"): 0.5,
    ("keras-torch", "compile"): 1.0,
    ("keras-tensorflow", "eager"): 0.25,
    ("keras-tensorflow", "function"): 1.2,
    ("keras-tensorflow", "xla"): 1.6,
    ("keras-jax", "xla"): 2.4,
}
EFFICIENCY = {1: 1.0, 2: 0.95, 4: 0.8}
NO_JAX = "Keras on JAX can't run here: jax and jaxlib are not installed. `make setup-jax` adds it to .venv"
HEAD = "ResNet-50, 32 px, batch 256"


class Lab:
    """The part of an open study that the trials need."""

    def __init__(self, hw: str, scale: str = "quick") -> None:
        self.profile = load_profile(hw)
        self.sweep: dict[str, Any] = dict(self.profile.sweep(STUDY, scale))

    @property
    def device_counts(self) -> list[int]:
        return OpenStudy.device_counts.fget(self)  # type: ignore[attr-defined, no-any-return]

    cpu = type("Cpu", (), {"cores": 2})

    def trials(self, **axes: Any) -> list[Trial]:
        return grid(**{"device": self.profile.device.kind, **axes})


def planned(hw: str, scale: str = "quick") -> list[Trial]:
    lab = Lab(hw, scale)
    return frameworks.metered(
        lab, [*frameworks.beside(lab), *frameworks.tuned(lab), *frameworks.published(lab), *frameworks.scaled(lab)]
    )


def record(trial: Trial, number: int, jax: bool = True) -> Record:
    if trial.framework == "keras-jax" and not jax:
        return failed(STUDY, trial, number, "unsupported", NO_JAX)
    if (trial.framework, trial.engine) == ("keras-jax", "eager"):
        return failed(STUDY, trial, number, "unsupported", "JAX's operators one by one are not meant for training: no")
    if trial.framework.startswith("keras") and trial.devices > 1:
        return failed(STUDY, trial, number, "unsupported", "Keras trains on one device here")
    precision = 2 if trial.precision == "bf16" else 1
    rate = ONE_S[trial.model] * SPEED[trial.framework, trial.engine] * precision
    made = blocks(STUDY, trial, number, rate * NOISE[number - 1] * trial.devices * EFFICIENCY[trial.devices])
    regions = {"compiled": int(number == 1), "from the cache": int(number > 1)}
    caching = {"compiled_regions": regions} if "compile" in trial.engine else {}
    return made.model_copy(update={"facts": made.facts | caching})


def made(hw: str = "h200_x4", jax: bool = True) -> StudyRecords:
    return of_records(STUDY, [record(trial, number, jax) for trial in planned(hw) for number in PASSES], hw)


def compared(jax: bool = True) -> pd.DataFrame:
    return frameworks.side_by_side(Results([made(jax=jax)]).frame())


# ---- the trials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hw", ["cpu", "h200", "h200_x4", "p100_16gb"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_profile_has_distinct_trials_each_with_a_native_counterpart(hw: str, scale: str) -> None:
    trials = planned(hw, scale)
    assert len({trial.key for trial in trials}) == len(trials) > 0
    assert {trial.device for trial in trials} == {load_profile(hw).device.kind}
    absent = {"keras-torch"} if hw == "cpu" and scale != "full" else set()  # it compiles for two minutes
    assert {trial.framework for trial in trials} == set(FRAMEWORKS) - absent

    def cell(trial: Trial) -> tuple[Any, ...]:
        is_eager = trial.engine == "eager"
        return trial.model, trial.image_px, trial.batch, trial.devices, trial.precision, is_eager

    usual = [trial for trial in trials if trial.optimizer == "sgd"]
    native = {cell(trial) for trial in usual if trial.framework == "torch"}
    assert all(cell(trial) in native or trial.engine == "xla" for trial in usual)


def test_no_trial_compiles_at_scale_smoke() -> None:
    for hw in ("cpu", "h200"):
        assert {trial.engine for trial in planned(hw, "smoke")} <= {"eager", "graph"}


def test_table_2_is_repeated_with_the_papers_batch_on_the_available_devices() -> None:
    on_four = [t for t in planned("h200_x4", "full") if (t.model, t.image_px, t.batch) == ("googlenet", 224, 128)]
    assert {trial.devices for trial in on_four} == {1, 2, 4}
    assert {trial.framework for trial in on_four} == set(FRAMEWORKS) and {t.precision for t in on_four} == {"fp32"}
    assert {t.engine for t in on_four if t.framework == "keras-jax"} == {"xla"}
    assert {t.devices for t in planned("h200", "full")} == {1}
    on_cpu = frameworks.published(Lab("cpu", "full"))
    assert {(t.model, t.batch, t.devices, t.device) for t in on_cpu} == {("googlenet", 128, 1, "cpu")}


# ---- comparisons ----------------------------------------------------------------------------------------------------


def test_only_settings_of_several_frameworks_on_a_single_device_are_compared() -> None:
    timed = compared()
    assert set(timed["setting"]) == {HEAD, "GoogLeNet, 224 px, batch 64", "ResNet-50, 224 px, batch 64"}
    assert set(timed["devices"]) == {1} and "compiled + CUDA graph, BF16" in set(timed["way"])


def test_each_framework_is_represented_by_its_fastest_mode() -> None:
    best = frameworks.fastest(compared())
    ways = best[best["setting"] == HEAD].drop_duplicates("framework").set_index("framework")["way"]
    assert ways.to_dict() == {
        "torch": "compiled + CUDA graph, BF16",
        "keras-torch": "compiled, BF16",
        "keras-tensorflow": "XLA, BF16",
        "keras-jax": "XLA, BF16",
    }
    over = ratio(best, "images_per_s", over={"framework": "keras-jax"}, by=["setting", "framework"])
    lead = over[(over["setting"] == HEAD) & (over["framework"] == "torch")]
    assert lead["value"].item() == pytest.approx(8 / 2.4), "PyTorch's fastest mode is the compiled CUDA graph"


def test_a_framework_that_cannot_run_has_a_single_row_with_its_reason() -> None:
    timed = compared(jax=False)
    best = frameworks.fastest(timed).query("framework == 'keras-jax' and setting == @HEAD")
    assert best["way"].isna().all() and best["key_hash"].nunique() == 1
    shown = frameworks.absent_once(timed)
    lost = shown[shown["framework"] == "keras-jax"]
    assert set(lost["mode"]) == {frameworks.ALL_MODES} and set(lost["reason"]) == {"jax and jaxlib are not installed"}
    others = shown[shown["framework"] != "keras-jax"]
    assert frameworks.ALL_MODES not in set(others["mode"]), "these have results"


def test_a_single_failing_mode_keeps_its_name() -> None:
    eager = frameworks.absent_once(compared()).query("framework == 'keras-jax' and engine == 'eager'")
    assert set(eager["mode"]) == {"eager"}
    assert set(eager["reason"]) == {"JAX's operators one by one are not meant for training"}


def test_a_start_is_warm_if_the_compiled_step_comes_from_the_disk() -> None:
    results = Results([made()])
    started = frameworks.starts(frameworks.side_by_side(results.frame()), results.facts("compiled_regions"))
    compiled = started[started["mode"] == "compiled"]
    assert set(compiled[compiled["pass_number"] == 1]["start"]) == {"cold"}
    assert set(compiled[compiled["pass_number"] > 1]["start"]) == {"warm"}
    assert set(started[started["engine"] == "eager"]["start"]) == {"no cache"}


def test_no_records_give_no_rows() -> None:
    results = Results([of_records(STUDY, [])])
    timed = frameworks.side_by_side(results.frame())
    assert frameworks.fastest(timed).empty and frameworks.absent_once(timed).empty
    assert frameworks.starts(timed, results.facts("compiled_regions")).empty


# ---- the papers -----------------------------------------------------------------------------------------------------


def test_the_time_of_a_run_of_table_2_follows_from_the_measured_throughput() -> None:
    rows = frameworks.table_2(Lab("h200_x4"), Results([made()]).frame())
    caffe = rows[rows["training"] == "NV-Caffe GoogLeNet"]
    for devices, seconds in ((1, 512_000 / 1500), (4, 512_000 / (1500 * 4 * 0.8))):
        assert caffe[caffe["devices"] == devices]["run_s"].mean() == pytest.approx(seconds, rel=0.02)
    speed_up = ratio(caffe, "images_per_s", over={"devices": 1}, by=["training", "devices"])
    assert speed_up.set_index("devices")["value"][4] == pytest.approx(3.2)
    assert set(caffe[caffe["devices"] == 4]["printed"]) == {"3.8x"}


def test_a_training_of_table_2_that_is_not_repeated_has_a_reason() -> None:
    rows = frameworks.table_2(Lab("h200"), Results([of_records(STUDY, [])]).frame())
    reasons = {(row["training"], row["devices"]): row["reason"] for row in rows.to_dict("records")}
    assert reasons["MXNet GoogLeNet", 1] == "GoogLeNet is built for 32 or 224 px, not for 256"
    assert reasons["MXNet Inception-BN", 16] == "needs 16 GPUs"
    assert reasons["MXNet Inception-BN", 1] == "not in this preset"
    assert reasons["Intel-Caffe GoogLeNet", 0].startswith("trains on a CPU")
    assert reasons["NV-Caffe GoogLeNet", 1] == "", "planned, and not measured yet"
    assert len(rows) == len(frameworks.runs())


def test_the_speed_ups_of_the_runs_equal_those_of_the_claims() -> None:
    (paper,) = [paper for paper in load_papers() if paper.id == frameworks.PAPER]
    printed = {
        (str(level.select["model"]), test.over["devices"]): level.value
        for claim in paper.claims
        for test in claim.tests
        for level in test.published
        if test.over.get("devices") and "device" not in test.over
    }
    runs = {(run.model, run.devices): run.speed_up for run in frameworks.runs() if run.speed_up}
    assert runs == {key: printed[key] for key in runs} and len(runs) == 3


def verdicts(results: StudyRecords, *others: StudyRecords) -> dict[str, Finding]:
    by_study = {records.study.id: records for records in (*others, results)}
    nothing = of_records("03_multi_gpu", [], results.profile.name)
    seen = Evidence(
        results.profile.name,
        (results.profile.name,),
        lambda _, study: by_study.get(study, nothing),
    )
    return {finding.claim.id: finding for finding in judge_all(load_papers(), seen, STUDY)}


def test_claims_on_scaling_use_records_of_either_study_and_compare_within_each() -> None:
    judged = verdicts(made())
    assert set(judged) == {"dell_p100-speedup4", "dell_p100-steady", "dell_v100-scaling"}
    four = judged["dell_p100-speedup4"]
    assert four.verdict == "replicated" and {case.sides[0].trial.framework for case in four.cases} == {"torch"}
    of_gpus = [
        blocks("03_multi_gpu", trial, n, 1000.0 * NOISE[n - 1] * trial.devices, devices_used=trial.devices)
        for trial in (Trial(model="googlenet", image_px=224, devices=count) for count in (1, 4))
        for n in PASSES
    ]
    both = verdicts(made(), of_records("03_multi_gpu", of_gpus, "h200_x4"))["dell_p100-speedup4"]
    studies = {tuple({side.results.study.id for side in case.sides}) for case in both.cases}
    assert studies == {("03_multi_gpu",), (STUDY,)}, "no pair across two studies"
    assert verdicts(made("cpu"))["dell_p100-speedup4"].verdict == "not testable here"
    none = verdicts(of_records(STUDY, [], "h200_x4"))["dell_v100-scaling"]
    assert "no records of 03_multi_gpu or 11_frameworks" in none.reason
