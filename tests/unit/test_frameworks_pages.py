"""The page of frameworks says what the records say, whatever is missing from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies.frameworks import (
    alike,
    answer,
    compared,
    devices,
    figures,
    grids,
    holding,
    lacking,
    once,
    plan,
    table_2,
    tables,
)
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Evidence, judge_all
from labkit.analysis.verdicts.verdict import Finding
from labkit.errors import UserError
from labkit.models import count
from labkit.observed import EnergyWindow, Metrics, Statistic, Telemetry, Window
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import COMPILED, FRAMEWORK_ENGINES, engine_class, is_plain, of_framework
from labkit.records import Record
from labkit.registry import SCALES
from labkit.results.from_result import value_of
from labkit.results.study_records import StudyRecords as Results
from labkit.study import OpenStudy
from labkit.trial import ENGINES, FRAMEWORKS, Trial, grid
from labkit.trial_label import trial_label
from tests.unit.made_records import NOISE, PASSES, TRAIN_IMAGES, blocks, failed, of_records

STUDY = "11_frameworks"
ONE_S = {"resnet50": 8000.0, "vgg16": 5000.0, "googlenet": 1500.0, "inception_v3": 600.0, "inception_bn": 1200.0}
SPEED = {  # over eager PyTorch
    ("torch", "eager"): 1.0,
    ("torch", "compile"): 2.0,
    ("torch", "compile+graph"): 8.0,
    ("torch", "graph"): 6.0,
    ("keras-torch", "eager"): 0.5,
    ("keras-torch", "compile"): 1.0,
    ("keras-tensorflow", "eager"): 0.25,
    ("keras-tensorflow", "function"): 1.2,
    ("keras-tensorflow", "xla"): 1.6,
    ("keras-jax", "xla"): 2.4,
}
EFFICIENCY = {1: 1.0, 2: 0.95, 4: 0.8}
NO_JAX = "Keras on JAX can't run here: jax and jaxlib are not installed. `make setup-jax` adds it to .venv"
ONE_DEVICE = "Keras on TensorFlow trains on one device in this version"
SMALL: dict[str, Any] = {"model": "resnet50", "batch": 256}


class Lab:
    """As much of an open study as the trials need."""

    def __init__(self, hw: str, scale: str = "quick") -> None:
        self.profile = load_profile(hw)
        self.sweep: dict[str, Any] = dict(self.profile.sweep(STUDY, scale))

    @property
    def device_counts(self) -> list[int]:
        return OpenStudy.device_counts.fget(self)  # type: ignore[attr-defined]

    cpu = type("Cpu", (), {"cores": 2})

    def trials(self, **axes: Any) -> list[Trial]:
        return grid(**{"device": self.profile.device.kind, **axes})


def planned(hw: str, scale: str = "quick") -> list[Trial]:
    lab = Lab(hw, scale)
    asked = [*grids.beside(lab), *grids.tuned(lab), *grids.published(lab), *grids.scaled(lab)]
    return grids.metered(lab, asked)


def rate(trial: Trial) -> float:
    speed = ONE_S[trial.model] * SPEED[trial.framework, trial.engine] * (2 if trial.precision == "bf16" else 1)
    return speed * trial.devices * EFFICIENCY[trial.devices]


def observed(trial: Trial, images_per_s: float) -> Telemetry:
    means = {"utilisation": 0.4, "power_w": 300.0, "memory_bytes": 6.0 * 2**30, "sm_clock_hz": 1.9e9}
    metrics: Metrics = {name: Statistic(mean=m, low=0.9 * m, high=1.1 * m, n=9) for name, m in means.items()}
    sources = {f"gpu{index}": metrics for index in range(trial.devices)}
    joules = dict.fromkeys(sources, 300.0 * 5)
    windows = [EnergyWindow(start_s=0, length_s=5, images=round(5 * images_per_s), energy_j=joules)]
    return Telemetry(
        status="ok",
        windows={"timed": Window(start_s=0, length_s=5, sources=sources)},
        energy=windows if trial.energy_windows else [],
        energy_method=dict.fromkeys(sources, "the device's counter"),
    )


def record(trial: Trial, number: int) -> Record:
    if (trial.framework, trial.engine) == ("keras-jax", "eager"):
        return failed(STUDY, trial, number, "unsupported", "JAX's operators one by one are not meant for training")
    if trial.framework.startswith("keras") and trial.devices > 1:
        return failed(STUDY, trial, number, "unsupported", ONE_DEVICE)
    speed = rate(trial) * NOISE[number - 1]
    keras = trial.framework.startswith("keras")
    made = blocks(STUDY, trial, number, speed, devices_used=trial.devices)
    facts = {
        **made.facts,
        "parameters": count(trial.model, image_px=trial.image_px).parameters,
        "loader": "host" if keras else "device",
        "cpu_cores_used": 1.1,
    }
    phases = dict(made.phases_s)
    if keras:
        prepared = {"trace": 3.0, "compile": 20.0 if number == 1 else 4.0} if trial.engine != "eager" else {}
        phases = {"build": 0.5, "first_step": 0.5, "warmup": 1.0, "timed": 5.0, **prepared}
        gate = {"against": "PyTorch's first loss", "loss_difference": 2e-6 * number, "loss_tolerance": 1e-4}
        told = {"build_s": 0.5, "first_step_s": 0.5 + sum(prepared.values()), "memory_bytes": 3 * 2**30}
        facts |= {"gate": gate, "traces": 1 if prepared else None, **told}
    versions = {"torch": "2.11", "keras": "3.15", "tensorflow": "2.21", "jax": "0.9", "jaxlib": "0.9"}
    gpu = {"telemetry": observed(trial, speed)} if trial.device == "cuda" else {}
    return made.model_copy(update={"facts": facts, "phases_s": phases, "versions": versions, **gpu})


@cache
def shown(hw: str = "h200_x4", scale: str = "quick") -> Results:
    return of_records(STUDY, [record(trial, n) for trial in planned(hw, scale) for n in PASSES], hw)


def without(framework: str, reason: str, results: Results) -> Results:
    """The same records of a machine that lacks a framework."""
    made = [
        failed(STUDY, one.as_trial, one.pass_number, "unsupported", reason) if one.framework == framework else one
        for one in results.records
    ]
    return of_records(STUDY, made, results.profile.name)


def in_framework(framework: str, engine: str, precision: str = "bf16", device: str = "cuda") -> Trial:
    (recipe,) = of_framework(framework, [engine], precision, device)
    return Trial(**SMALL, device=device, **recipe)


def column(table: Table | Text, name: str) -> list[Any]:
    assert isinstance(table, Table)
    return list(table.frame[name])


def by_first_columns(table: Table | Text, name: str) -> dict[tuple[str, str], Any]:
    assert isinstance(table, Table)
    first, second = table.frame.columns[:2]
    return dict(zip(zip(table.frame[first], table.frame[second], strict=True), table.frame[name], strict=True))


def verdicts(results: Results, *others: Results) -> dict[str, Finding]:
    known = {one.study.id: one for one in (*others, results)}
    nothing = of_records("03_multi_gpu", [], results.profile.name)
    seen = Evidence(
        results.profile.name,
        (results.profile.name,),
        frozenset({STUDY, "03_multi_gpu"}),
        lambda _, study: known.get(study, nothing),
    )
    return {finding.claim.id: finding for finding in judge_all(load_papers(), seen, STUDY)}


# ---- which trials ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hw", ["cpu", "h200", "h200_x4", "p100_16gb"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_profile_has_trials_that_are_told_apart_and_stand_beside_native_pytorch(hw: str, scale: str) -> None:
    trials = planned(hw, scale)
    assert len({trial.key for trial in trials}) == len(trials) > 0
    assert {trial.device for trial in trials} == {load_profile(hw).device.kind}
    absent = {"keras-torch"} if (hw, scale) == ("cpu", "smoke") else set()  # half a minute is not enough for all
    assert {trial.framework for trial in trials} == set(FRAMEWORKS) - absent
    fields = {"workload": "train", "optimizer": "sgd", "scaling": "weak"}
    for trial in trials:
        if compared.is_own(trial):
            continue
        assert {name: getattr(trial, name) for name in fields} == fields
        alike = [other for other in trials if other.framework == "torch" and other.devices == trial.devices]
        beside = [other for other in alike if compared.Cell.of(other) == compared.Cell.of(trial)]
        assert beside or trial.engine == "xla", f"{trial_label(trial)} has no native twin"
        assert trial.framework == "torch" or trial.memory_format == "contiguous", "Keras's own is no field"
    told = [(compared.Setting.of(t), compared.how(t), t.precision, t.devices) for t in trials]
    assert len(set(told)) == len(told), "no row of a table stands twice"


def test_nothing_compiles_at_the_smallest_scale() -> None:
    for hw in ("cpu", "h200"):
        names = {trial.engine for trial in planned(hw, "smoke")}
        assert names <= {"eager", "graph"}, "capturing takes a moment, compiling half a minute"
        said = plan.extent(load_profile(hw), planned(hw, "smoke"), "smoke").body
        assert "Keras on TensorFlow by function" in said and "Keras on JAX by xla" in said
    assert plan.extent(load_profile("h200"), planned("h200", "full"), "full").body.startswith("Scale full has every")
    quick = plan.extent(load_profile("h200"), planned("h200"), "quick").body
    assert quick.startswith("Keras on PyTorch trains no network at its own size here."), "it compiles for minutes"
    assert "no GPU" in plan.extent(load_profile("cpu"), planned("cpu"), "quick").body


def test_a_framework_has_its_own_engines_and_no_others() -> None:
    assert set(FRAMEWORK_ENGINES) == set(FRAMEWORKS)
    for name, engines in FRAMEWORK_ENGINES.items():
        assert set(engines) <= set(ENGINES) and engines[0] == "eager"
        assert len(of_framework(name, engines, "bf16", "cuda")) == len(engines)
    asked = ["eager", "compile", "function", "xla"]
    assert [r["engine"] for r in of_framework("keras-jax", asked, "fp32", "cpu")] == ["eager", "xla"]
    assert [r["engine"] for r in of_framework("torch", asked, "fp32", "cpu")] == ["eager", "compile"]
    assert is_plain(Trial(**of_framework("torch", ["eager"], "fp32", "cpu")[0]))
    assert not is_plain(Trial(**of_framework("keras-torch", ["eager"], "fp32", "cpu")[0]))
    assert of_framework("torch", ["eager"], "bf16", "cuda")[0]["memory_format"] == "channels_last"
    with pytest.raises(UserError, match="unknown framework 'jax'"):
        of_framework("jax", asked, "fp32", "cpu")
    with pytest.raises(UserError, match="unknown engine of a framework 'fast'"):
        of_framework("torch", ["fast"], "fp32", "cpu")
    assert [engine_class(name) for name in ("eager", "function", "xla", "compile+graph")] == ["eager"] + [
        "compiled"
    ] * 3


def test_table_2_is_run_with_the_papers_batch_on_as_many_devices_as_there_are() -> None:
    on_four = [t for t in planned("h200_x4", "full") if (t.model, t.image_px, t.batch) == ("googlenet", 224, 128)]
    assert {trial.devices for trial in on_four} == {1, 2, 4}
    assert {trial.framework for trial in on_four} == set(FRAMEWORKS) and {t.precision for t in on_four} == {"fp32"}
    assert {t.engine for t in on_four if t.framework == "keras-jax"} == {"xla"}
    assert {t.devices for t in planned("h200", "full")} == {1}
    on_cpu = grids.published(Lab("cpu", "full"))
    assert {(t.model, t.batch, t.devices, t.device) for t in on_cpu} == {("googlenet", 128, 1, "cpu")}
    (odd,) = [run for run in grids.runs() if run.image_px == 256]
    assert "GoogLeNet is built for 32 or 224 px, not for 256" in str(grids.why_not_built(odd))


# ---- what stands beside what ----------------------------------------------------------------------------------------


def test_the_ratio_is_over_pytorch_in_the_same_precision_by_the_same_class_of_engine() -> None:
    results = shown()
    eager, xla, function = (in_framework("keras-tensorflow", engine, "bf16") for engine in ("eager", "xla", "function"))
    assert compared.native_of(results, eager) == in_framework("torch", "eager")
    assert compared.native_of(results, xla) == in_framework("torch", "compile"), "never the workbook's own"
    for trial, expected in ((eager, 0.25), (xla, 0.8), (function, 0.6), (in_framework("keras-jax", "xla"), 1.2)):
        ratio = compared.over_native(results, trial)
        assert ratio is not None and ratio.point == pytest.approx(expected) and ratio.n == 3
    assert compared.over_native(results, in_framework("torch", "compile")) is None


def test_in_a_cell_nothing_but_frameworks_differ_and_the_faster_of_two_engines_stands_for_one() -> None:
    results = shown()
    cells = compared.contested(results, compared.side_by_side(results))
    assert [compared.how(ranked[0]) for ranked in cells.values()].count("Keras on JAX, XLA") == 2
    for cell, ranked in cells.items():
        assert {compared.Cell.of(trial) for trial in ranked} == {cell}
        assert len({trial.framework for trial in ranked}) == len(ranked) > 1
        assert not any(map(compared.is_own, ranked))
        rates = [rate(trial) for trial in ranked]
        assert rates == sorted(rates, reverse=True)
    compiled = next(ranked for cell, ranked in cells.items() if cell.kind == "compiled")
    assert [trial.engine for trial in compiled if trial.framework == "keras-tensorflow"] == ["xla"]


def test_the_widest_gap_and_what_compiling_makes_stand_in_the_first_sentence() -> None:
    said = answer.headline(shown()).body.split("\n\n")
    assert "frameworks lie apart by 4.00x [4.00, 4.00] at most: PyTorch, eager over Keras on TensorFlow" in said[0]
    assert "eager in FP32); under the slower one some kernel runs in 40 % of the time." in said[0]
    assert "compiling makes of the eager images/s at most: PyTorch 2.00x" in said[0]
    assert "; Keras on TensorFlow 6.40x [6.40, 6.40] (XLA, ResNet-50, 32 px, batch 256, BF16)" in said[0]
    assert "Compiled in BF16, Keras on JAX is fastest with every network." in said[3]
    assert "Keras on TensorFlow 0.8x" in said[3]
    assert "3.33x [3.33, 3.33] with ResNet-50, 32 px (compile+graph (tuned) in BF16 over Keras on JAX, XLA" in said[4]
    assert "No result of Keras on JAX, eager (JAX's operators one by one are not meant for training)." in said[5]
    assert "Keras on PyTorch, eager on several devices" in said[5] and f"({ONE_DEVICE})" in said[5]


def test_a_framework_that_is_not_here_is_named_once_with_its_reason_and_is_a_row_everywhere() -> None:
    results = without("keras-jax", NO_JAX, shown("cpu"))
    said = answer.headline(results).body
    assert f"No result of Keras on JAX ({NO_JAX.partition(': ')[2]})." in said and said.count("Keras on JAX") == 1
    assert "for a GPU" not in said and "no GPU" in said
    trials = compared.side_by_side(results)
    (table,) = tables.speed(results, trials)
    rows = dict(zip(column(table, ""), column(table, "no result"), strict=True))
    assert rows["Keras on JAX, XLA, FP32"] == rows["Keras on JAX, eager, FP32"] == "unsupported"
    assert rows["PyTorch, eager, FP32"] is None
    assert "of roofline" not in table.frame, "a CPU has no nominal peaks"
    picture = figures.rates(results, trials)
    assert isinstance(picture, Figure) and "Crosses have no result: Keras on JAX." in picture.caption


def test_images_per_s_stand_beside_what_the_nominal_peaks_allow() -> None:
    results = shown()
    table = tables.speed(results, compared.side_by_side(results))[0]
    assert isinstance(table, Table) and "Of roofline: of what the nominal peaks of" in table.caption
    share = dict(zip(column(table, ""), column(table, "of roofline"), strict=True))["PyTorch, eager, FP32"]
    peak = load_profile("h200").peaks.flop_per_s["fp32"].value
    expected = 8000 * count("resnet50").flop_training / peak
    assert float(share.split()[0]) == pytest.approx(100 * expected, rel=0.05)


def test_tensorflows_way_on_a_gpu_is_said_to_be_untested_where_no_record_has_it() -> None:
    lost = without("keras-tensorflow", "Keras on TensorFlow can't run here: tensorflow 2.21 is a CPU build", shown())
    for results, untested in ((lost, True), (shown(), False), (shown("cpu"), False)):
        for text in (answer.headline(results), answer.limitations(results)):
            assert ("TensorFlow's way on a GPU is untested here" in text.body) == untested
    assert lacking.ran_on(shown("cpu"), "keras-tensorflow", "cpu")
    assert not lacking.ran_on(shown("cpu"), "keras-tensorflow", "cuda")


def test_one_framework_alone_is_no_answer_and_no_records_are_none() -> None:
    results = shown("cpu")
    for name in FRAMEWORKS[1:]:
        results = without(name, "not installed", results)
    assert answer.matters(results, compared.side_by_side(results)).startswith(
        "Whether the framework matters can't be said"
    )
    assert answer.key_numbers(results) and "compiled over eager" in answer.key_numbers(results)[0][1]
    assert isinstance(figures.ratios(results, compared.side_by_side(results)), Text)
    nothing = of_records(STUDY, [], "h200")
    assert "Nothing was measured" in answer.headline(nothing).body and answer.key_numbers(nothing) == []
    assert isinstance(tables.speed(nothing, [])[0], Text) and isinstance(tables.use(nothing, [])[0], Text)
    assert "no other trainings on several devices: the profile has one" in devices.table(nothing).body  # type: ignore[union-attr]
    all_failed = of_records(STUDY, [failed(STUDY, trial, 1) for trial in planned("h200")], "h200")
    assert "No trial gave a result" in answer.headline(all_failed).body


def test_who_is_ahead_within_the_noise_is_not_told_apart() -> None:
    eager = {name: in_framework(name, "eager", "fp32") for name in ("torch", "keras-torch")}
    speed = {"torch": (1000.0, 1010.0, 990.0), "keras-torch": (1000.0, 900.0, 1080.0)}
    made = [blocks(STUDY, eager[name], n, speed[name][n - 1]) for name in eager for n in PASSES]
    results = of_records(STUDY, made, "h200")
    said = answer.ahead(results, compared.side_by_side(results))
    assert "PyTorch is fastest (ResNet-50, 32 px, batch 256) (not to be told apart here: PyTorch from Keras" in said
    assert "not to be told apart" not in answer.headline(shown()).body
    one = of_records(STUDY, [record for record in made if record.pass_number == 1], "h200")
    assert "not to be told apart" not in answer.ahead(one, compared.side_by_side(one)), "one pass says neither"


# ---- time to the first step, memory, use ----------------------------------------------------------------------------


def test_the_first_step_has_building_tracing_and_compiling_before_it_and_no_gate_after_it() -> None:
    plain, compiled = in_framework("torch", "eager"), in_framework("torch", "compile")
    jax = in_framework("keras-jax", "xla")
    seconds = {trial: value_of(record(trial, 1), "time_to_first_step_s") for trial in (plain, compiled, jax)}
    assert seconds == {plain: 0.5 + 0.5, compiled: 0.5 + 45.0, jax: 0.5 + 3.0 + 20.0 + 0.5}
    made = record(jax, 1)
    told = made.model_copy(update={"facts": {**made.facts, "build_s": 2.0, "first_step_s": 9.0}})
    assert value_of(told, "time_to_first_step_s") == 11.0, "what the workload says itself"
    silent = {name: made.facts[name] for name in made.facts if name not in ("build_s", "first_step_s")}
    assert value_of(made.model_copy(update={"facts": silent}), "time_to_first_step_s") == 24.0, "else the phases"
    assert value_of(made, "trace_s") == 3.0 and value_of(record(plain, 1), "trace_s") is None
    predicted = made.model_copy(update={"trial": {**made.trial, "workload": "infer"}})
    assert value_of(predicted, "time_to_first_step_s") is None


def test_the_first_pass_stands_beside_the_later_ones() -> None:
    results = shown()
    picture = once.first_steps(results, compared.side_by_side(results))
    assert isinstance(picture, Figure)
    jax = picture.data[(picture.data["how"] == "Keras on JAX, XLA") & (picture.data["setting"].str.startswith("Res"))]
    assert dict(zip(jax["which"], jax["value"], strict=True)) == pytest.approx({once.FIRST: 24.0, once.LATER: 8.0})
    assert "The longest, 46.0 s, is PyTorch, compile+graph (tuned) in BF16" in picture.caption
    assert "45.5 s of it trace and compile" in picture.caption
    once_only = of_records(STUDY, [one for one in results.records if one.pass_number == 1], "h200_x4")
    alone = once.first_steps(once_only, compared.side_by_side(once_only))
    assert isinstance(alone, Figure) and set(alone.data["which"]) == {once.FIRST}


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        ((4, 0), "what the first has compiled. The first began with nothing there. The longest"),
        (
            (0, 4),
            "first pass PyTorch, compile and Keras on JAX, XLA found programs of an earlier run there already.",
        ),
        (
            None,
            "first pass of PyTorch, compile and Keras on JAX, XLA found any there the records do not say.",
        ),
    ],
)
def test_the_caption_says_whether_the_first_pass_found_compiled_programs(
    graphs: tuple[int, int] | None, said: str
) -> None:
    trials = [in_framework("torch", "eager"), in_framework("torch", "compile"), in_framework("keras-jax", "xla")]
    told = {"compiled_regions": dict(zip(("compiled", "from the cache"), graphs, strict=True))} if graphs else {}
    made = [record(trial, n) for trial in trials for n in PASSES]
    records = [
        one.model_copy(update={"facts": {**one.facts, **(told if one.as_trial.engine != "eager" else {})}})
        for one in made
    ]
    picture = once.first_steps(of_records(STUDY, records), trials)
    assert isinstance(picture, Figure) and said in picture.caption


def test_the_caption_tells_compilers_that_began_with_nothing_from_those_that_did_not() -> None:
    trials = [in_framework("torch", "compile"), in_framework("keras-jax", "xla")]
    made = [record(trial, n) for trial in trials for n in PASSES]
    graphs = {"torch": {"compiled": 4, "from the cache": 0}, "keras-jax": {"compiled": 1, "from the cache": 3}}
    told = [
        one.model_copy(update={"facts": {**one.facts, "compiled_regions": graphs[str(one.framework)]}}) for one in made
    ]
    picture = once.first_steps(of_records(STUDY, told), trials)
    assert isinstance(picture, Figure)
    assert "In their first pass Keras on JAX, XLA found programs of an earlier run there already." in picture.caption
    assert "The first pass of PyTorch, compile began with nothing there." in picture.caption


def test_memory_is_the_frameworks_own_peak_beside_the_devices_and_of_a_cpu_the_process() -> None:
    results = shown()
    picture = once.memory(results, compared.side_by_side(results))
    assert isinstance(picture, Figure)
    jax = picture.data[(picture.data["how"] == "Keras on JAX, XLA") & (picture.data["setting"].str.startswith("Res"))]
    assert dict(zip(jax["which"], jax["value"], strict=True)) == pytest.approx({once.OWN: 3.0, once.DEVICE: 6.0})
    native = value_of(record(in_framework("torch", "eager"), 1), "framework_peak_bytes")
    assert native == 2**30, "PyTorch's allocator keeps it for every trial"
    assert value_of(record(in_framework("torch", "eager", "fp32", "cpu"), 1), "framework_peak_bytes") is None
    reason = "an earlier trial of the process took more"
    lost = {"memory_bytes": None, "memory_reason": reason, "planned_memory_bytes": 2**31}
    silent = [
        one.model_copy(update={"facts": {**one.facts, **lost}}) if one.framework == "keras-jax" else one
        for one in results.records
    ]
    unknown = once.memory(of_records(STUDY, silent, "h200_x4"), compared.side_by_side(results))
    assert (
        isinstance(unknown, Figure)
        and f"(without its own counter, Keras on JAX, XLA: {reason}, half filled" in unknown.caption
    )
    assert set(unknown.data["which"]) == {once.OWN, once.PLANNED, once.DEVICE} and "<svg" in unknown.svg(LIGHT)
    planned_gib = unknown.data[unknown.data["which"] == once.PLANNED]
    assert set(planned_gib["how"]) == {"Keras on JAX, XLA"} and list(planned_gib["value"]) == pytest.approx(
        [2.0] * len(planned_gib)
    )
    on_cpu = once.memory(shown("cpu"), compared.side_by_side(shown("cpu")))
    assert isinstance(on_cpu, Figure) and set(on_cpu.data["which"]) == {once.RESIDENT}


def test_energy_is_of_the_trials_with_long_windows_and_an_epoch_is_of_the_training_images() -> None:
    results = shown()
    *shown_tables, held = tables.use(results, compared.side_by_side(results))
    assert isinstance(held, Text) and "less than 50 % of the time" in held.body
    by_setting = {table.caption.split(". ")[0]: table for table in shown_tables if isinstance(table, Table)}
    table = by_setting["GoogLeNet, 224 px, batch 64"]
    row = table.frame.set_index("").loc["Keras on JAX, XLA, BF16"]
    assert float(row["mJ/image"].split()[0]) == pytest.approx(300 / (1500 * 2.4 * 2) * 1e3, rel=0.01)
    assert float(row["epoch (s)"].split()[0]) == pytest.approx(TRAIN_IMAGES / (1500 * 2.4 * 2), rel=0.01)
    small = by_setting["ResNet-50, 32 px, batch 256"]
    assert "mJ/image" not in small.frame, "no long windows there"
    assert "the device's counter" in small.caption and table.caption.endswith("As above.")
    assert "Utilisation: time" in small.caption and "SM activity" not in small.caption, "nobody told that"
    (on_cpu,) = tables.use(shown("cpu"), compared.side_by_side(shown("cpu")))  # no device told its use there
    assert isinstance(on_cpu, Table) and "No power" in on_cpu.caption and "power (W)" not in on_cpu.frame
    assert "Utilisation" not in on_cpu.caption


def test_what_the_host_held_back_is_told_from_what_filled_the_device() -> None:
    use = {"PyTorch, eager": 0.25, "PyTorch, compile": 0.2, "Keras on JAX, XLA": 0.95, "Keras on PyTorch, compile": 0.7}
    made = []
    for one in shown().records:
        share = use.get(compared.how(one.as_trial))
        if one.status == "ok" and share and one.telemetry:
            told = Statistic(mean=share, low=share, high=share, n=9)
            windows = {
                name: window.model_copy(
                    update={"sources": {gpu: {**of, "utilisation": told} for gpu, of in window.sources.items()}}
                )
                for name, window in one.telemetry.windows.items()
            }
            one = one.model_copy(update={"telemetry": one.telemetry.model_copy(update={"windows": windows})})
        made.append(one)
    results = of_records(STUDY, made, "h200_x4")
    known = [trial for trial in compared.side_by_side(results) if results.ok(trial) and compared.how(trial) in use]
    said = holding.by_whom(results, known)
    assert said is not None
    waiting, between, busy, held, elsewhere = said.body.split(". ")
    assert waiting.startswith("Some kernel ran in less than 50 % of the time under ")
    assert "PyTorch, eager in FP32 25 %; PyTorch, eager in BF16 25 %; PyTorch, compile in BF16 20 %" in waiting
    assert between.startswith("It did in 50 % to 90 %") and "Keras on PyTorch, compile in BF16 70 %" in between
    assert busy.startswith("It did in 90 % or more of the time under Keras on JAX, XLA in BF16 95 %")
    assert "PyTorch" not in busy
    most = f"lie apart by up to {max(NOISE) / min(NOISE):.2f}x ("
    assert "less than 90 % the host holds the step up" in held and most in held
    assert elsewhere.startswith("Elsewhere passes") and most in elsewhere
    alone = holding.by_whom(results, [trial for trial in known if trial.framework == "keras-jax"])
    assert alone and alone.body.startswith("Some kernel ran in 90 % or more of the time under Keras on JAX")
    assert "host" not in alone.body and " Passes lie apart" in alone.body
    assert holding.by_whom(shown("cpu"), compared.side_by_side(shown("cpu"))) is None


def test_limits_speak_of_the_compilers_that_are_there() -> None:
    of_gpu, of_cpu = (answer.limitations(shown(hw)).body for hw in ("h200_x4", "cpu"))
    assert "TorchInductor of all but the update" in of_gpu and "XLA of all" in of_gpu and "CUDA graphs" in of_gpu
    assert "PyTorch's captured step is among the tuned engines" in of_gpu
    alike = [one for one in shown().records if not compared.is_own(one.as_trial)]
    assert "captured step" not in answer.limitations(of_records(STUDY, alike, "h200_x4")).body
    lacking = without("keras-tensorflow", "tensorflow is not installed", shown())
    assert "TensorFlow's graph" in of_gpu and "TensorFlow's graph" not in answer.limitations(lacking).body
    assert "CUDA graphs" not in of_cpu and "memory ahead" not in of_cpu and "mixed precision" not in of_cpu
    eager = [one for one in shown("cpu").records if one.as_trial.engine == "eager"]
    assert "Compiled is" not in answer.limitations(of_records(STUDY, eager, "cpu")).body
    tuned = "PyTorch's tuned engines have one of their own"
    assert tuned in plan.prediction(load_profile("h200"), planned("h200")).caption  # type: ignore[union-attr]
    assert tuned not in plan.prediction(load_profile("cpu"), planned("cpu")).caption  # type: ignore[union-attr]


def test_bars_of_later_passes_are_called_what_they_are() -> None:
    few, many = in_framework("torch", "compile"), in_framework("keras-jax", "xla")
    made = [record(few, n) for n in PASSES]
    later = [record(many, 1 + n % 3).model_copy(update={"pass_number": n}) for n in range(1, 6)]
    for records, bars in (
        (made, "Bars: both of two later passes."),
        (later, "Bars: 95 % interval."),
        ([*made, *later], "Bars: 95 % interval; of two later passes both."),
    ):
        picture = once.first_steps(of_records(STUDY, records), list(dict.fromkeys(one.as_trial for one in records)))
        assert isinstance(picture, Figure) and picture.caption.endswith(bars)


def test_networks_that_differ_in_parameters_are_said_to_be_no_comparison() -> None:
    results = shown()
    table = alike.networks(results, compared.side_by_side(results))
    assert isinstance(table, Table) and table.caption.endswith("They are the same.")
    assert len(set(table.frame.iloc[0][1:])) == 1
    other = [
        one.model_copy(update={"facts": {**one.facts, "parameters": 1}}) if one.framework == "keras-jax" else one
        for one in results.records
    ]
    odd = alike.networks(of_records(STUDY, other, "h200_x4"), compared.side_by_side(results))
    assert isinstance(odd, Table) and "what is compared there is not the same" in odd.caption


def test_first_losses_stand_beside_what_they_may_differ_by_and_what_is_traced_twice_is_named() -> None:
    results = shown()
    table = alike.first_losses(results, compared.side_by_side(results))
    assert isinstance(table, Table) and "Traced more than once" not in table.caption
    row = table.frame.set_index("").loc["Keras on JAX, XLA, BF16"]
    assert (row["differs by"], row["may by"], row["traced"], row["records"]) == ("6e-06", "0.0001", 1, 6)
    native = table.frame.set_index("").loc["PyTorch, compile, BF16"]
    assert native["beside"] == alike.EAGER_LOOP and native["traced"] is None
    twice = [
        one.model_copy(update={"facts": {**one.facts, "traces": 2}}) if one.trial["engine"] == "xla" else one
        for one in results.records
    ]
    again = alike.first_losses(of_records(STUDY, twice, "h200_x4"), compared.side_by_side(results))
    assert isinstance(again, Table) and "Keras on TensorFlow, XLA, BF16; Keras on JAX" in again.caption
    assert isinstance(alike.first_losses(of_records(STUDY, [], "cpu"), []), Text)
    changed = [
        one.model_copy(update={"facts": {**one.facts, "gate": {**one.facts["gate"], "against": against}}})
        for one in results.records
        if one.status == "ok" and one.framework == "keras-jax"
        for against in ["PyTorch's first loss" + (", with nothing dropped" if one.pass_number == 2 else "")]
    ]
    dropped = alike.first_losses(of_records(STUDY, changed, "h200_x4"), [one.as_trial for one in changed])
    told = "PyTorch's first loss (of some networks, with nothing dropped)"
    assert isinstance(dropped, Table) and set(dropped.frame["beside"]) == {told}


# ---- the papers -----------------------------------------------------------------------------------------------------


def test_a_run_of_table_2_takes_its_samples_at_the_measured_images_per_second() -> None:
    results = shown()
    runs = {(run.framework, run.model, run.devices): run for run in grids.runs()}
    for run in (runs["NV-Caffe", "googlenet", 1], runs["NV-Caffe", "googlenet", 4]):
        (trial,) = table_2.trials_of(results, run)
        took = table_2.run_time(results, run, trial)
        assert took is not None and took.point == pytest.approx(512_000 / rate(trial), rel=0.01)
    table = table_2.table(results)
    assert column(table, "iterations")[:3] == ["4,000 x 128", "2,000 x 256", "1,000 x 512"]
    assert column(table, "printed")[2] == "3.8x" and column(table, "speed-up")[2].startswith("3.20x")
    assert isinstance(table, Table)
    assert "MXNet GoogLeNet on 1 (GoogLeNet is built for 32 or 224 px, not for 256)" in table.caption
    assert "MXNet Inception-BN on 8, 12 and 16 (more devices than the profile's 4)" in table.caption
    assert "MXNet Inception-BN on 1, 2 and 4 (not at scale quick)" in table.caption
    assert "No training of the paper's table 2 was run here" in table_2.table(shown("cpu")).body  # type: ignore[union-attr]


def test_the_speed_ups_of_the_runs_are_those_of_the_claims() -> None:
    (paper,) = [one for one in load_papers() if one.id == grids.PAPER]
    printed = {
        (str(one.select["model"]), test.over["devices"]): one.value
        for claim in paper.claims
        for test in claim.tests
        for one in test.published
        if test.over.get("devices") and "device" not in test.over
    }
    found = {(run.model, run.devices): run.speed_up for run in grids.runs() if run.speed_up}
    assert found == {key: printed[key] for key in found} and len(found) == 3


def test_several_devices_stand_beside_one_and_those_that_cannot_are_rows() -> None:
    table = devices.table(shown())
    assert isinstance(table, Table) and table.caption.startswith("ResNet-50, 224 px, batch 64, each device's batch")
    rows = by_first_columns(table, "no result")
    assert rows["Keras on TensorFlow, eager, FP32", "2 and 4 GPUs"] == "unsupported", "one row, not one a number"
    torch = table.frame[table.frame["by"] == "PyTorch, eager, FP32"]
    assert list(torch["on"]) == ["1 GPU", "2 GPUs", "4 GPUs"] and list(torch["of linear"])[1:] == ["95 %", "80 %"]
    assert len(rows) == 3 + 3, "the paper's trainings stand in a table of their own"


def test_claims_on_scaling_take_the_records_of_either_study_and_compare_within_each() -> None:
    found = verdicts(shown())
    assert set(found) == {"dell_p100-speedup4", "dell_v100-scaling"}
    four = found["dell_p100-speedup4"]
    assert four.verdict == "replicated" and {case.sides[0].trial.framework for case in four.cases} == {"torch"}
    assert {side.results.study.id for case in four.cases for side in case.sides} == {STUDY}
    others = of_records(
        "03_multi_gpu",
        [
            blocks("03_multi_gpu", trial, n, 1000.0 * NOISE[n - 1] * trial.devices, devices_used=trial.devices)
            for trial in (Trial(model="googlenet", image_px=224, devices=count) for count in (1, 4))
            for n in PASSES
        ],
        "h200_x4",
    )
    both = verdicts(shown(), others)["dell_p100-speedup4"]
    assert {tuple({side.results.study.id for side in case.sides}) for case in both.cases} == {
        ("03_multi_gpu",),
        (STUDY,),
    }, "no pair across two studies"
    assert len(both.cases) == len(four.cases) + 1 and any("study multi_gpu" in case.label for case in both.cases)
    assert verdicts(shown("cpu"))["dell_p100-speedup4"].verdict == "not testable here"
    none = verdicts(of_records(STUDY, [], "h200_x4"))["dell_v100-scaling"]
    assert "no records of 03_multi_gpu or 11_frameworks" in none.reason and "STUDY=multi_gpu,frameworks" in none.reason


# ---- pictures and the plan ------------------------------------------------------------------------------------------

PICTURES: list[Callable[[Results, list[Trial]], Figure | Text]] = [
    figures.ratios,
    figures.rates,
    once.first_steps,
    once.memory,
]


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize(("hw", "scale"), [("h200_x4", "quick"), ("cpu", "smoke")])
def test_every_picture_is_drawn_in_light_and_dark_or_says_why_not(
    picture: Callable[[Results, list[Trial]], Figure | Text], hw: str, scale: str
) -> None:
    results = shown(hw, scale)
    drawn = picture(results, compared.side_by_side(results))
    assert isinstance(drawn, Figure) and drawn.alt and "n = 3" in drawn.caption
    assert all("<svg" in drawn.svg(theme) for theme in (LIGHT, DARK))
    nothing = picture(of_records(STUDY, [], hw), [])
    assert isinstance(nothing, Text) and nothing.body


def test_the_plan_has_a_row_for_what_is_alike_and_one_bound_for_all_frameworks() -> None:
    trials = planned("h200")
    table = plan.table(trials, 3)
    rows = [row for row in column(table, "by") if "compile+graph" in row]
    assert rows == [
        "PyTorch: eager, compile, compile+graph (tuned); Keras on PyTorch: eager, compile; "
        "Keras on TensorFlow: eager, function, XLA; Keras on JAX: eager, XLA",
        "PyTorch: compile, compile+graph (tuned); Keras on TensorFlow: XLA; Keras on JAX: XLA",
    ]
    bound = plan.prediction(load_profile("h200"), trials)
    assert isinstance(bound, Table) and "what they differ in is how near they come" in bound.caption
    assert len(bound.frame) == len(bound.frame.drop_duplicates()) == 5, "no framework is named"
    assert "no nominal peaks" in plan.prediction(load_profile("cpu"), planned("cpu")).caption  # type: ignore[union-attr]


def test_the_workbooks_own_engines_stand_beside_and_in_no_class() -> None:
    own = Trial(**SMALL, **COMPILED)
    assert compared.is_own(own) and not compared.is_own(in_framework("torch", "compile"))
    assert own in planned("h200") and all(own not in trials for trials in compared.cells(planned("h200")).values())
    fused = [trial for trial in planned("cpu", "full") if compared.is_own(trial)]
    assert fused and {compared.engine(trial) for trial in fused} == {"fused (tuned)"}
    assert replace(own, framework="keras-torch").optimizer != "sgd" and not compared.is_own(
        replace(own, framework="keras-torch")
    )


def test_versions_are_of_what_ran() -> None:
    assert "PyTorch (2.11" in answer.versions(shown()).body
    assert answer.versions(of_records(STUDY, [], "cpu")).body == "No framework was measured."
