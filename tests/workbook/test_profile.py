"""Tests of reading profiles, and of errors that name the key, the file and the valid words, nearest first."""

import os
import re

import pytest

from labkit.errors import UserError
from workbook.hardware.profile import load_profile, profile_names, read_yaml

GOOD = """
title: A GPU
device: {kind: cuda, pattern: '^A GPU$', memory_bytes: {value: 16e9, source: a datasheet}}
peaks:
  flop_per_s: {fp32: {value: 1e13, source: a datasheet}}
timing:
  smoke: {warmup_s: 0.5, timed_s: 1, block_s: 0.1, limit_s: 120}
  full: {warmup_s: 5, timed_s: 15, block_s: 0.25, limit_s: 600, passes: 9}
sweeps:
  01_training:
    smoke: {batch: [8], learning_rate: 1e-3}
"""


@pytest.fixture
def params(tmp_path):
    """Return a function that writes profiles into a params folder and returns the folder."""

    def write(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


def refusal(folder, name="mine"):
    with pytest.raises(UserError) as caught:
        load_profile(name, folder)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_good_profile_is_read_as_it_is_written(params):
    profile = load_profile("mine", params(mine=GOOD))
    assert (profile.name, profile.title) == ("mine", "A GPU")
    assert profile.device.count == 1
    assert profile.device.memory_bytes.value == 16e9
    assert profile.peaks.flop_per_s["fp32"].source == "a datasheet"


# --- unknown keys


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        (GOOD + "tilte: x\nswweps: {}\n", "swweps", "sweeps"),  # two mistakes at once
        (GOOD.replace("pattern:", "patern:"), "device.patern", "pattern"),
        (GOOD.replace("value: 16e9,", "valu: 16e9,"), "device.memory_bytes.valu", "value"),
        (GOOD.replace("flop_per_s:", "flops_per_s:"), "peaks.flops_per_s", "flop_per_s"),
        (GOOD.replace("fp32:", "fp322:"), "peaks.flop_per_s.fp322", "fp32"),
        (GOOD.replace("{value: 1e13", "{values: 1e13"), "peaks.flop_per_s.fp32.values", "value"),
        (GOOD.replace("warmup_s: 0.5", "warmup: 0.5"), "timing.smoke.warmup", "warmup_s"),
        (GOOD + "timing_of: {}\n", "timing_of", "timing"),  # of older profiles
        (GOOD + "cluster: {gpu_per_node: 4}\n", "cluster.gpu_per_node", "gpus_per_node"),
    ],
)
def test_an_unknown_key_is_named_with_its_file_and_the_valid_ones_nearest_first(params, text, key, nearest):
    message = refusal(params(mine=text))
    assert message.startswith("params/mine.yaml: ")
    assert f"unknown key {key!r}; valid here: {nearest}" in message
    assert "Nothing was run" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("01_training", "01_trainin"), "sweeps: unknown study '01_trainin'; valid: 01_training, "),
        (GOOD.replace("    smoke:", "    smok:"), "sweeps.01_training: unknown scale 'smok'; valid: smoke, "),
        (GOOD.replace("  full:", "  ful:"), "timing: unknown scale 'ful'; valid: full, "),
    ],
)
def test_an_unknown_study_or_scale_is_named_with_the_valid_ones_nearest_first(params, text, said):
    assert said in refusal(params(mine=text))


# --- numbers


def test_common_notations_of_numbers_are_read_and_other_words_stay_text(params):
    for text in ("1e-3", "1E-3", "1.e-3", "+1e-3", ".1e-2", "0.001", "10e-4"):
        sweep = load_profile("mine", params(mine=GOOD.replace("1e-3", text))).sweep("training", "smoke")
        assert sweep["learning_rate"] == pytest.approx(1e-3), text
    for text in ("1e", "e3", "1e3x", "0x1p", "v1e3", "1-3"):
        sweep = load_profile("mine", params(mine=GOOD.replace("1e-3", text))).sweep("training", "smoke")
        assert sweep["learning_rate"] == text


@pytest.mark.parametrize("quoted", ["'1e13'", "10 TFLOPS", "true", "[1e13]", "-1e13", "0", ".inf", ".nan"])
def test_values_other_than_positive_numbers_are_refused(params, quoted):
    message = refusal(params(mine=GOOD.replace("1e13", quoted)))
    assert "peaks.flop_per_s.fp32.value: Input should be " in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (GOOD.replace("title: A GPU", "title: 7"), "title"),
        (GOOD.replace("kind: cuda", "kind: rocm"), "device.kind"),
        (GOOD.replace("kind: cuda,", "kind: cuda, count: 1.5,"), "device.count"),
        (GOOD.replace("kind: cuda,", "kind: cuda, count: 0,"), "device.count"),
        (GOOD.replace("kind: cuda,", "kind: cuda, compute_capability: 9.0,"), "device.compute_capability"),
        (GOOD.replace("timed_s: 1,", "timed_s: long,"), "timing.smoke.timed_s"),
        (GOOD.replace("timed_s: 1,", ""), "timing.smoke.timed_s"),
        (GOOD.replace(", source: a datasheet}}\n", "}}\n"), "source"),
        (GOOD + "runnable: 'no'\n", "runnable"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_by_its_key(params, text, key):
    message = refusal(params(mine=text))
    assert message.startswith("params/mine.yaml: ")
    assert f"{key}: " in message


def test_a_pattern_that_is_not_a_regular_expression_is_refused(params):
    message = refusal(params(mine=GOOD.replace("^A GPU$", "A (GPU")))
    assert "device.pattern: not a regular expression: missing )" in message
    assert "; write one such as '^(NVIDIA )?H200$'" in message


# --- the file


def test_a_key_given_twice_is_refused_with_its_line(params):
    message = refusal(params(mine=GOOD + "title: Another\n"))
    assert "mine.yaml" in message and "the key 'title' is given twice" in message and "line 12" in message
    assert "'fp32' is given twice" in refusal(params(mine=GOOD.replace("{fp32:", "{fp32: 1, fp32:")))


@pytest.mark.parametrize(
    "text", ["title: [", "title: 'x", "\ttitle: x", "a: b: c", "{{ title }}: x", "!!python/name:os.system x"]
)
def test_invalid_yaml_is_refused_with_the_file_and_the_line(params, text):
    message = refusal(params(mine=text))
    assert message.startswith("mine.yaml is not valid YAML: ")
    assert re.search(r"line [12]\b", message), "libyaml reports an open bracket at the end of the file"


def test_a_file_without_text_or_a_mapping_is_refused(params):
    for text, kind in (("- a\n- b\n", "list"), ("words", "str"), ("", "NoneType"), ("7", "int")):
        assert refusal(params(mine=text)) == f"mine.yaml must hold a mapping (key: value lines), not {kind}."
    folder = params(mine=GOOD)
    (folder / "mine.yaml").write_bytes(b"title: \xff\xfe\n")
    assert refusal(folder).startswith("mine.yaml is not valid YAML: ")
    assert "not valid YAML: day is out of range" in refusal(params(mine=GOOD + "description: 2026-02-30\n"))


def test_read_yaml_runs_no_code(tmp_path):
    path, witness = tmp_path / "x.yaml", tmp_path / "witness"
    path.write_text(f"a: !!python/object/apply:os.mkdir ['{witness}']\n", encoding="utf-8")
    with pytest.raises(UserError):
        read_yaml(path)
    assert not witness.exists()


# --- extends


def test_a_profile_inherits_missing_values_from_the_profile_it_extends(params):
    folder = params(
        base__gpu=GOOD, one="extends: base/gpu\ntitle: One\n", two="extends: one\ntitle: Two\ndevice: {count: 2}\n"
    )
    two = load_profile("two", folder)
    assert (two.name, two.title, two.extends) == ("two", "Two", "one")
    assert (two.device.count, two.device.pattern) == (2, "^A GPU$")
    assert two.sweeps == load_profile("one", folder).sweeps
    assert profile_names(folder) == ["one", "two"], "files in base/ are not hardware"


def test_an_inherited_list_is_replaced_as_a_whole(params):
    child = "extends: one\ntitle: Two\nsweeps: {01_training: {smoke: {batch: [64]}}}\n"
    two = load_profile("two", params(one=GOOD, two=child))
    assert two.sweep("01", "smoke") == {"batch": [64], "learning_rate": 1e-3}


def test_a_size_that_the_extended_profile_lacks_is_named_with_its_own_nearest_first(params):
    child = "extends: base/gpu\ntitle: Two\nsweeps: {01_training: {full: {learning_rat: 0.1}}}\n"
    message = refusal(params(base__gpu=GOOD, two=child), "two")
    assert message.startswith(
        "unknown key of sweeps.01_training.full in params/two.yaml 'learning_rat'; valid: learning_r"
    )
    three = "extends: two\ntitle: Three\n"
    assert "'learning_rat'" in refusal(params(base__gpu=GOOD, two=child, three=three), "three"), "inherited too"


@pytest.mark.parametrize("sizes", ["", " {01_training: }", " {01_training: {smoke: }}", " {01_training: {smoke: {}}}"])
def test_an_extended_profile_may_leave_its_sizes_to_others(params, sizes):
    base = GOOD.partition("sweeps:")[0] + f"sweeps:{sizes}\n"
    child = "extends: base/gpu\ntitle: Two\nsweeps: {01_training: {smoke: {batch: [8]}}}\n"
    assert load_profile("two", params(base__gpu=base, two=child)).sweep("01", "smoke") == {"batch": [8]}


def test_title_description_and_cluster_are_not_inherited(params):
    parent = GOOD + "description: Of the one.\ncluster: {partition: a}\n"
    two = load_profile("two", params(one=parent, two="extends: one\ntitle: Two\n"))
    assert (two.description, two.cluster) == ("", None)
    assert "title: Field required" in refusal(params(three="extends: one\n"), "three")


def test_a_sourced_number_that_is_overridden_replaces_its_source_too(params):
    child = "extends: one\ntitle: Two\npeaks: {flop_per_s: {fp32: {value: 2e13}}}\n"
    folder = params(one=GOOD, two=child, three=child.replace("2e13", "2e13, source: another"))
    assert "peaks.flop_per_s.fp32.source: Field required" in refusal(folder, "two")
    assert load_profile("three", folder).peaks.flop_per_s["fp32"].model_dump() == {"value": 2e13, "source": "another"}


def test_a_cycle_of_extended_profiles_is_refused_with_its_path(params):
    folder = params(a="extends: b\n", b="extends: c\n", c="extends: a\n", d="extends: d\n")
    assert refusal(folder, "a") == "params/a.yaml extends itself: a -> b -> c -> a."
    assert refusal(folder, "d") == "params/d.yaml extends itself: d -> d."


def test_an_unknown_profile_to_extend_is_named_with_the_valid_ones_nearest_first(params):
    message = refusal(params(base__gpu=GOOD, mine="extends: base/gpus\n"))
    assert message.startswith("params/mine.yaml: unknown profile to extend 'base/gpus'; valid: base/gpu, ")


def test_prices_stand_in_a_file_of_their_own(params):
    folder = params(mine=GOOD, other=GOOD)
    assert load_profile("mine", folder).cost is None
    prices = folder.parent / "prices.yaml"
    prices.write_text("currency: EUR\nper_hour:\n  mine: {value: 2, source: a list}\n  cpu: {value: 1, source: b}\n")
    cost = load_profile("mine", folder).cost
    assert (cost.per_hour.value, cost.cpu_per_hour.value, cost.currency) == (2, 1, "EUR")
    assert load_profile("other", folder).cost is None
    prices.write_text("currency: EUR\nper_hour: # nothing entered yet\n")
    assert load_profile("mine", folder).cost is None
    prices.write_text("currency: EUR\nper_hour: {others: {value: 2, source: a list}}\n")
    assert refusal(folder).startswith("unknown profile in prices.yaml 'others'; valid: other, ")
    prices.write_text("currency: EUR\nper_hour: {mine: {value: 2}}\n")
    assert refusal(folder).startswith("prices.yaml: per_hour.mine.source: ")
    prices.unlink()
    assert "prices stand in prices.yaml" in refusal(params(mine=GOOD + "cost: {currency: EUR}\n"))


# --- runnable


def test_a_profile_that_is_not_runnable_needs_a_reason(params):
    folder = params(mine=GOOD + "runnable: false\n", good=GOOD + "runnable: false\nreason: too old\n")
    assert "a profile that is not runnable says why in `reason`" in refusal(folder)
    assert load_profile("good", folder).reason == "too old"


def test_a_runnable_profile_needs_a_timing(params):
    without = GOOD[: GOOD.index("timing:")]
    folder = params(mine=without, old=without + "runnable: false\nreason: too old\n")
    assert "`timing` is missing" in refusal(folder)
    assert load_profile("old", folder).timing == {}


# --- HW


def test_an_unknown_hw_lists_all_profiles_nearest_first_and_next_steps():
    with pytest.raises(UserError, match="unknown HW 'p100_16g'; valid: p100_16gb, p100_12gb, p100_16gb_x4,") as caught:
        load_profile("p100_16g")
    assert all(name in str(caught.value) for name in profile_names())
    assert "make profile" in str(caught.value)


@pytest.mark.parametrize(
    "hw",
    [
        "",
        "..",
        "../x",
        "base/gpu",
        "/etc/passwd",
        "cpu.yaml",
        "CPU",
        "cpu\n",
        "*",
        "$(touch x)",
        "cpu; touch x",
        "x\0y",
    ],
)
def test_a_hw_is_never_used_as_a_path_or_a_command(hw, tmp_path, monkeypatch):
    (tmp_path / "x.yaml").write_text(GOOD, encoding="utf-8")
    folder = tmp_path / "params"
    (folder / "base").mkdir(parents=True)
    for name in ("cpu", "base/gpu"):
        (folder / f"{name}.yaml").write_text(GOOD, encoding="utf-8")
    monkeypatch.chdir(folder)
    before = sorted(os.walk(tmp_path))
    assert refusal(folder, hw).startswith(f"unknown HW {hw!r}; valid: cpu.")
    assert sorted(os.walk(tmp_path)) == before


# --- sizes


def test_a_scale_without_a_sweep_takes_the_next_smaller_ones(params):
    profile = load_profile("mine", params(mine=GOOD))
    assert profile.sweep("01_training", "full") == profile.sweep("training", "smoke")


def test_a_study_without_a_sweep_at_its_scale_or_a_smaller_one_says_what_to_add(params):
    with pytest.raises(
        UserError, match="profile 'mine' has no sweep for 10_gan at full: add one under `sweeps:` in params/"
    ):
        load_profile("mine", params(mine=GOOD)).sweep("10_gan", "full")
    with pytest.raises(UserError, match="no sweep for 01_training at smoke"):
        load_profile("mine", params(mine=GOOD.replace("    smoke:", "    quick:"))).sweep("01_training", "smoke")


def test_the_number_of_passes_is_the_scales_unless_the_profile_sets_it(params):
    profile = load_profile("mine", params(mine=GOOD))
    assert (profile.passes("smoke"), profile.passes("full")) == (1, 9)
    with pytest.raises(UserError, match="no timing for scale 'quick'; it has: smoke, full"):
        profile.timing_at("quick")
