"""Tests of the profiles in params/: their device patterns, nominal numbers and sources, timings and sweeps."""

import itertools
import re
from pathlib import Path

import pytest

from labkit.errors import UserError
from workbook.hardware.profile import PARAMS, Profile, Sourced, load_profile, profile_names, read_yaml
from workbook.paths import notebook_of
from workbook.registry import SCALES
from workbook.report.execute import planned_trials
from workbook.trials.recipes import of_side
from workbook.trials.trial import thread_counts

PROMISED = [
    "cpu",
    "k20xm",
    "k40c",
    "k40m",
    "k80",
    "p40",
    "p40_x4",
    "p100_12gb",
    "p100_16gb",
    "p100_16gb_x4",
    "p100_sxm2",
    "v100_pcie",
    "v100_pcie_x4",
    "v100_sxm2",
    "v100_x4",
    "h200",
    "h200_x2",
    "h200_x4",
    "h200_x8",
]

# NVML's name of a device, without the prefix "NVIDIA " of newer drivers, and the profile of a single such device.
SINGLE = {
    "Tesla K20Xm": "k20xm",
    "Tesla K40c": "k40c",
    "Tesla K40m": "k40m",
    "Tesla K80": "k80",
    "Tesla P40": "p40",
    "Tesla P100-PCIE-12GB": "p100_12gb",
    "Tesla P100-PCIE-16GB": "p100_16gb",
    "Tesla P100-SXM2-16GB": "p100_sxm2",
    "Tesla V100-PCIE-16GB": "v100_pcie",
    "Tesla V100-PCIE-32GB": "v100_pcie",
    "Tesla V100-SXM2-16GB": "v100_sxm2",
    "Tesla V100-SXM2-32GB": "v100_sxm2",
    "H200": "h200",
    "A100-SXM4-40GB": "a100_40gb",
    "A100-SXM4-80GB": "a100_80gb",
    "B200": "b200",
    "L4": "l4",
    "L40S": "l40s",
    "Tesla T4": "t4",
    "GeForce RTX 4090": "rtx4090",
    "GeForce RTX 5090": "rtx5090",
}
SEVERAL = {
    ("Tesla P100-PCIE-16GB", 4): "p100_16gb_x4",
    ("Tesla V100-SXM2-16GB", 4): "v100_x4",
    ("Tesla V100-PCIE-16GB", 4): "v100_pcie_x4",
    ("Tesla P40", 4): "p40_x4",
    ("H200", 2): "h200_x2",
    ("H200", 4): "h200_x4",
    ("H200", 8): "h200_x8",
}
BASE_OF = {
    **{"p100_16gb_x4": "p100_16gb", "v100_x4": "v100_sxm2", "v100_pcie_x4": "v100_pcie", "p40_x4": "p40"},
    **dict.fromkeys(("h200_x2", "h200_x4", "h200_x8"), "h200"),
}
KEPLER = ("k20xm", "k40c", "k40m", "k80")
# Other devices, which a looser pattern would match.
STRANGERS = (
    "NVIDIA H200 NVL",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA L40",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 5090 Laptop GPU",
    "NVIDIA GB200",
    "NVIDIA GH200 480GB",
    "NVIDIA H20",
    "NVIDIA H100 PCIe",
    "NVIDIA H200 MIG 1g.18gb",
    "GRID V100-PCIE-16C",
    "Tesla V100S-PCIE-32GB",
    "Tesla V100-SXM3-32GB",
    "Tesla V100-FHHL-16GB",
    "Tesla V100-DGXS-16GB",
    "Tesla V100-SXM2-32GB-LS",
    "Tesla K20m",
    "Tesla K20c",
    "Tesla K40t",
    "Tesla K40s",
    "Tesla P4",
    "Tesla M40",
    "Quadro P4000",
)

ALL = {name: load_profile(name) for name in profile_names()}
GPUS = {name: profile for name, profile in ALL.items() if profile.device.kind == "cuda"}


def matching(device_name: str, count: int) -> list[str]:
    return [n for n, p in GPUS.items() if p.device.count == count and p.device.fits(device_name)]


def cores_per_multiprocessor(profile: Profile) -> int:
    """Return FP32 results per clock and multiprocessor (CUDA C++ Programming Guide, "Arithmetic Instructions")."""
    by_capability = {"3.5": 192, "3.7": 192, "6.0": 64, "6.1": 128, "7.0": 64, "9.0": 128}
    return by_capability[profile.device.compute_capability]


def numbers(profile: Profile) -> dict[str, Sourced]:
    device, peaks = profile.device, profile.peaks
    by_name = {f"flop_per_s.{k}": v for k, v in peaks.flop_per_s.items()}
    by_name |= {
        "memory_bytes": device.memory_bytes,
        "multiprocessors": device.multiprocessors,
        "board_power_w": device.board_power_w,
        "memory_bytes_per_s": peaks.memory_bytes_per_s,
    }
    return by_name


@pytest.mark.parametrize("path", sorted(PARAMS.rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_file_in_params_is_a_profile_or_is_extended_by_a_profile(path):
    assert read_yaml(path)["title"]
    if path.parent == PARAMS:
        assert ALL[path.stem].title == read_yaml(path)["title"], "each profile has a title of its own"
    else:
        relative = str(path.relative_to(PARAMS).with_suffix(""))
        assert any(read_yaml(candidate).get("extends") == relative for candidate in PARAMS.glob("*.yaml"))


@pytest.mark.parametrize(("devices", "profile"), [*SINGLE.items(), *SEVERAL.items()])
def test_a_device_matches_only_its_own_profile_under_old_and_new_driver_names(devices, profile):
    device_name, count = devices if isinstance(devices, tuple) else (devices, 1)
    for prefix in ("", "NVIDIA "):
        assert matching(prefix + device_name, count) == [profile]


def test_a_similar_device_matches_no_profile():
    for stranger in STRANGERS:
        assert [match for count in (1, 2, 4, 8) for match in matching(stranger, count)] == []


@pytest.mark.parametrize("name", PROMISED[1:])  # without the CPU
def test_every_nominal_number_of_a_gpu_is_given_with_a_document(name):
    assert ALL["cpu"].peaks.flop_per_s == {}, "the peaks of a CPU are measured"
    for key, number in numbers(ALL[name]).items():
        assert number is not None, key
        assert re.search(r"datasheet|whitepaper|reference|github\.com|NVML", number.source), (key, number.source)


@pytest.mark.parametrize("name", PROMISED[1:])
def test_the_fp32_peak_is_two_flop_per_core_at_a_clock_of_the_chip(name):
    profile = ALL[name]
    cores = profile.device.multiprocessors.value * cores_per_multiprocessor(profile)
    clock_hz = profile.peaks.flop_per_s["fp32"].value / (2 * cores)
    lowest, highest = {
        "Kepler": (0.73e9, 0.875e9),  # base of K20X; highest boost of K40 and K80
        "Pascal": (1.126e9, 1.531e9),  # base of P100 PCIe; boost of P40
        "Volta": (1.23e9, 1.53e9),
        "Hopper": (1.59e9, 1.98e9),
    }[profile.device.architecture]
    assert 0.99 * lowest <= clock_hz <= 1.025 * highest  # datasheets round: P40 says 12 for 11.76


@pytest.mark.parametrize("name", PROMISED[1:])
def test_a_narrower_number_format_is_never_slower(name):
    peaks = {precision: number.value for precision, number in ALL[name].peaks.flop_per_s.items()}
    order = [peaks[precision] for precision in ("fp64", "fp32", "tf32", "fp16", "int8") if precision in peaks]
    assert order == sorted(order)
    assert peaks.get("bf16", peaks.get("fp16")) == peaks.get("fp16")


def test_peaks_are_of_dense_arithmetic_without_sparsity():
    # Above the measured 773 TFLOP/s (BF16) and 907 TOP/s (INT8) of a matrix product, and below the sparse figures.
    assert 773e12 < ALL["h200"].peaks.flop_per_s["bf16"].value < 1000e12
    assert 907e12 < ALL["h200"].peaks.flop_per_s["int8"].value < 2000e12


@pytest.mark.parametrize(("several", "one"), BASE_OF.items())
def test_profiles_of_several_devices_differ_only_in_the_count(several, one):
    many, single = ALL[several], ALL[one]
    assert many.device.count == int(several.rsplit("_x", 1)[1])
    assert many.device.model_copy(update={"count": 1}) == single.device
    assert (many.peaks, many.timing, many.sweeps) == (single.peaks, single.timing, single.sweeps)


def test_only_kepler_cannot_run_and_the_reason_names_the_render_command():
    assert [name for name, profile in ALL.items() if not profile.runnable] == sorted(KEPLER)
    for name in KEPLER:
        assert ALL[name].device.compute_capability in ("3.5", "3.7")
        assert "CUDA 11.8" in ALL[name].reason and f"make render HW={name}`" in ALL[name].reason


@pytest.mark.parametrize("name", GPUS)
def test_a_chip_without_support_in_the_default_wheels_names_wheels_that_work(name):
    profile = GPUS[name]
    too_old = float(profile.device.compute_capability) < 7.5
    assert ("make report TORCH_INDEX=https://download.pytorch.org/whl/cu126" in profile.description) == (
        too_old and profile.runnable
    )


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", SCALES)
def test_each_profile_has_timings_and_the_sizes_that_notebooks_read(name, scale):
    timing = ALL[name].timing_at(scale)
    assert timing.warmup_s + timing.timed_s < timing.limit_s and timing.block_s < timing.timed_s
    assert timing.shortened().timed_s == timing.timed_s / 2 > 2 * timing.block_s
    for study in ("01_training", "02_batch_size", "06_cpu_vs_gpu", "07_precision"):
        sweep = ALL[name].sweep(study, scale)
        assert set(sweep) == set(ALL["h200"].sweep(study, "quick"))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", SCALES)
def test_each_profile_has_sizes_for_both_sides(name, scale):
    sweep = ALL[name].sweep("06_cpu_vs_gpu", scale)
    assert set(sweep["tuned"]) | set(sweep["swept"]) | set(sweep["metered"]) <= {*sweep["models"], *sweep["large"]}
    assert thread_counts(sweep["threads"], 16)[-1] == 16, "a sweep ends with all cores of the machine"
    assert set(sweep["swept_workloads"]) <= {"train", "infer"}
    assert bool(sweep["metered"]) == bool(sweep["energy_windows"])
    for device, workload in itertools.product(("cpu", "cuda"), ("train", "infer")):
        of_side(sweep["engines"], device, workload, cpu_features=())  # raises for a name that no side has
    assert of_side(sweep["swept_engines"], "cuda", "infer", cpu_features=()) == [], "only the CPU's threads are swept"
    assert scale != "smoke" or "compile" not in str(sweep["engines"])


def test_no_trial_compiles_at_the_smallest_scale():
    for study in ("02_batch_size", "07_precision"):
        for profile in ALL.values():
            sweep = profile.sweep(study, "smoke")
            assert not (sweep.get("compiled") or sweep["compiled_models"])
            assert "compile" not in str([sweep.get("engines"), sweep["run_engine"]])
            assert "compile" not in str(sweep.get("engine")) or not sweep["engine_models"]


@pytest.mark.parametrize(
    ("study", "sizes", "said"),
    [
        (
            "01_training",
            {"batch": None},
            r"the sweep of 01_training at quick .* lacks 'batch'; it has: .*",
        ),
        ("01_training", {"models": ["resnet51"]}, r"unknown network 'resnet51'; valid: resnet18, .*"),
        ("01_training", {"batch": [-5]}, r"a trial's batch must be at least 1, not -5\."),
        ("03_multi_gpu", {"engines": ["grpah"]}, r"unknown recipe 'grpah'; valid: plain, .*"),
        ("03_multi_gpu", {"runs": [2.5]}, r"unknown training run on several devices .2\.5.; valid: .*"),
        (
            "05_inference",
            {"compiled_engine": 7},
            r"05_inference can make no .* params/cpu\.yaml .*KeyError 7.*",
        ),
    ],
)
def test_a_sweep_that_makes_no_valid_trials_is_a_user_error(study, sizes, said, monkeypatch):
    profile = load_profile("cpu")
    mended = {name: value for name, value in {**profile.sweep(study, "quick"), **sizes}.items() if value is not None}
    broken = profile.model_copy(update={"sweeps": {**profile.sweeps, study: {"quick": mended}}})
    monkeypatch.setattr("workbook.study.load_profile", lambda *_: broken)
    parameters = {"hw": "cpu", "scale": "quick", "mode": "plan", "data": ""}
    with pytest.raises(UserError) as caught:
        planned_trials(notebook_of(study), parameters)
    assert re.fullmatch(said, str(caught.value))


def test_a_copied_notebook_that_opens_another_study_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "02_batch_size.ipynb"
    copy.write_text(notebook_of("01_training").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(UserError, match=r"opens the study '01_training'.*write .*02_batch_size"):
        planned_trials(copy, {"hw": "h200", "scale": "quick", "mode": "plan", "data": ""})
