"""Tests of the recipes: the baseline, the tuned recipes of each device kind, and the engines of frameworks."""

from __future__ import annotations

from typing import Literal, get_args

import pytest

from labkit.errors import UserError
from workbook.hardware.profile import load_profile
from workbook.studies.free_speed import one_change, which_change
from workbook.trials.recipes import (
    CAPTURED,
    COMPILED,
    FRAMEWORK_ENGINES,
    PLAIN,
    in_precision,
    is_plain,
    of_framework,
    of_side,
    on_devices,
    ordinary,
    recipes,
    tuned,
    weight_passes,
)
from workbook.trials.trial import FRAMEWORKS, RETIRED, WORDS, Trial, grid
from workbook.words import AS_INSTALLED, CAREFUL, MODE_NAMES, configuration_name, label, mode_name

Kind = Literal["cuda", "cpu"]


def test_the_baseline_has_the_defaults_of_a_trial() -> None:
    assert PLAIN == {} and is_plain(Trial()) and mode_name(Trial()) == "strict FP32"


@pytest.mark.parametrize("name", ["fused", "channels_last", "tf32"])
def test_one_change_sets_one_field_and_is_found_in_a_trial_by_it(name: str) -> None:
    trial = Trial(batch=256, learning_rate=0.1, **one_change(name))
    assert len(one_change(name)) == 1 and not is_plain(trial) and mode_name(trial) != "strict FP32"
    assert which_change(trial.as_dict()) == name and which_change(Trial(batch=256).as_dict()) == ""
    assert which_change(trial.as_dict() | {"engine": "compile"}) is None, "two changes"


@pytest.mark.parametrize("setting", RETIRED["host_setting"])
def test_a_recorded_loop_with_a_host_setting_keeps_its_names_and_is_not_the_baseline(setting: str) -> None:
    trial = Trial(host_setting=setting)
    assert which_change(trial.as_dict()) == setting and not is_plain(trial)
    assert label("host_setting", setting) in mode_name(trial) != "strict FP32"
    assert label("host_setting", setting) in configuration_name(trial, beside=[Trial()])


@pytest.mark.parametrize("name", ["foreach", "two_cores"])
def test_a_change_that_does_not_run_is_refused_with_the_valid_ones(name: str) -> None:
    with pytest.raises(UserError, match=f"unknown change to the baseline '{name}'; valid: [^;]*fused") as refused:
        one_change(name)
    assert "calling_thread" not in str(refused.value)


def test_sharing_out_an_update_reduces_passes_over_the_weights_down_to_a_bound() -> None:
    forward_backward_and_new_weights = 3 * 0.5 + 0.5
    passes = [weight_passes("sgd_master", devices) for devices in (1, 2, 4, 8)]
    assert passes == [6.5, 4.25, 3.125, 2.5625]
    assert passes[-1] > weight_passes("sgd_master", 10**6) > forward_backward_and_new_weights
    assert {weight_passes(optimizer, devices) for optimizer in ("sgd", "sgd_fused") for devices in (1, 8)} == {8.0}


def test_every_name_of_a_mode_is_listed() -> None:
    fields = {"engine": WORDS["engine"], "optimizer": ("sgd", "sgd_fused"), "host_setting": WORDS["host_setting"]}
    trials = [*grid(**fields, precision=("fp32", "default", "bf16"))]
    trials += grid(workload=("own_prediction",), engine=WORDS["engine"], precision=("int8", "fp8"))
    assert {mode_name(trial) for trial in trials} == set(MODE_NAMES)


def test_ordinary_pytorch_has_names_of_its_own_in_training_and_inference() -> None:
    for workload in ("train", "infer"):
        trials = [Trial(workload=workload, **recipe) for recipe in ordinary("cuda", workload)]
        assert [mode_name(trial) for trial in trials] == [AS_INSTALLED, CAREFUL]
        assert ordinary("cpu", workload) == []


@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_recipe_makes_a_trial_with_a_distinct_name(kind: Kind) -> None:
    made = {name: grid(device=kind, **recipe) for name, recipe in recipes(kind).items()}
    assert len({mode_name(trial) for (trial,) in made.values()}) == len(made)
    assert [name for name, (trial,) in made.items() if is_plain(trial)] == ["plain"]
    assert set(made) == {"plain", *tuned(kind)}
    with pytest.raises(UserError, match="unknown recipe 'plane'; valid: plain, "):
        recipes(kind)["plane"]


def test_an_eager_step_in_fp32_is_the_baseline_of_every_study_and_framework() -> None:
    assert Trial(**in_precision("eager", "fp32")) == Trial(**recipes("cuda")["plain"]) == Trial()
    assert Trial(**of_framework("torch", ["eager"], "fp32")[0]) == Trial()


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
@pytest.mark.parametrize("mode", ["eager", "fused", "compile", "graph"])
def test_a_precision_changes_the_memory_format_and_nothing_else_of_a_mode(mode: str, precision: str) -> None:
    narrow, fp32 = (Trial(**in_precision(mode, name)).as_dict() for name in (precision, "fp32"))
    differing = {name: narrow[name] for name in narrow if narrow[name] != fp32[name]}
    assert differing == {"precision": precision, "memory_format": "channels_last"}


def test_a_mode_without_a_recipe_in_every_precision_is_a_user_error() -> None:
    with pytest.raises(UserError, match="unknown execution mode in any precision 'xla'; valid: eager, "):
        in_precision("xla", "fp32")


def test_a_gpu_has_a_captured_and_a_compiled_recipe_that_differ_only_in_the_engine() -> None:
    assert tuned("cuda") == {"graph": CAPTURED, "compile+graph": COMPILED}
    assert {name for name in CAPTURED if CAPTURED[name] != COMPILED[name]} == {"engine"}
    assert "graph" not in str(tuned("cpu")), "a CPU has no CUDA graphs"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_recipe_on_several_devices_differs_only_in_gradient_precision(kind: Kind) -> None:
    for recipe in recipes(kind).values():
        assert on_devices(recipe, 1) == {**recipe, "devices": 1}
        (trial,) = grid(device=kind, **on_devices(recipe, 4))
        assert trial.devices == 4 and trial.gradient_precision == (
            "bf16" if kind == "cuda" and not is_plain(trial) else "fp32"
        )
        assert {name: getattr(trial, name) for name in recipe} == recipe


AMX = ("avx2", "amx_bf16")


@pytest.mark.parametrize("workload", ["train", "infer"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_each_side_takes_its_engines_from_a_shared_list(kind: Kind, workload: str) -> None:
    names = ["fused", "bf16", "openvino", "graph"]
    trials = [
        Trial(workload=workload, device=kind, **recipe) for recipe in of_side(names, kind, workload, cpu_features=AMX)
    ]
    expected = {
        ("cuda", "train"): [("CUDA graph", "bf16")],
        ("cuda", "infer"): [("CUDA graph", "bf16")],
        ("cpu", "train"): [(CAREFUL, "fp32"), (CAREFUL, "bf16")],
        ("cpu", "infer"): [("OpenVINO", "bf16"), ("OpenVINO", "fp32")],
    }
    assert [(mode_name(trial), trial.precision) for trial in trials] == expected[kind, workload]
    assert not any(map(is_plain, trials))


@pytest.mark.parametrize("workload", ["train", "infer"])
def test_bf16_is_left_out_only_on_a_cpu_that_lacks_it(workload: str) -> None:
    assert of_side(["bf16"], "cpu", workload, cpu_features=("avx2", "avx512_vnni")) == []
    for feature in ("amx_bf16", "avx512_bf16", "bf16"):
        assert of_side(["bf16"], "cpu", workload, cpu_features=(feature,))
    assert of_side(["graph"], "cuda", workload, cpu_features=())[0]["precision"] == "bf16"


def test_an_engine_that_no_side_has_is_a_user_error() -> None:
    with pytest.raises(UserError, match="unknown tuned mode 'openvine'; valid: openvino"):
        of_side(["openvine"], "cuda", "train", cpu_features=())


def test_changing_a_returned_recipe_changes_no_other() -> None:
    tuned("cuda")["graph"]["precision"] = "fp32"
    assert tuned("cuda")["graph"]["precision"] == "bf16"


@pytest.mark.parametrize("field", ["precision", "engine", "memory_format", "optimizer"])
def test_a_trial_with_any_tuned_field_is_not_the_baseline(field: str) -> None:
    assert not is_plain(Trial(**{field: COMPILED[field]}))


@pytest.mark.parametrize("hw", ["cpu", "h200", "p100_16gb"])
@pytest.mark.parametrize("scale", ["smoke", "quick", "full"])
def test_every_engine_that_a_profile_names_has_a_recipe(hw: str, scale: str) -> None:
    profile = load_profile(hw)
    sweep, names = profile.sweep("02_batch_size", scale), recipes(profile.device.kind)
    assert {*sweep["engines"], sweep["compiled_engine"], sweep["run_engine"]} <= set(names)  # type: ignore[misc]
    precisions = profile.sweep("07_precision", scale)
    assert precisions["compiled_engine"] in names
    assert all(in_precision(str(precisions[name]), "fp32") for name in ("engine", "run_engine"))


def test_a_framework_has_only_its_own_engines() -> None:
    assert set(FRAMEWORK_ENGINES) == set(FRAMEWORKS)
    for name, engines in FRAMEWORK_ENGINES.items():
        assert set(engines) <= set(WORDS["engine"]) and engines[0] == "eager"
        assert len(of_framework(name, engines, "bf16")) == len(engines)
    asked = ["eager", "compile", "function", "xla"]
    assert [r["engine"] for r in of_framework("keras-jax", asked, "fp32")] == ["eager", "xla"]
    assert [r["engine"] for r in of_framework("torch", asked, "fp32")] == ["eager", "compile"]
    assert is_plain(Trial(**of_framework("torch", ["eager"], "fp32")[0]))
    assert not is_plain(Trial(**of_framework("keras-torch", ["eager"], "fp32")[0]))
    assert of_framework("torch", ["eager"], "bf16")[0]["memory_format"] == "channels_last"
    with pytest.raises(UserError, match="unknown framework 'jax'"):
        of_framework("jax", asked, "fp32")
    with pytest.raises(UserError, match="unknown mode of a framework 'fast'"):
        of_framework("torch", ["fast"], "fp32")
