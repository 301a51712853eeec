"""Tests of setup: the packages for each device, a profile for an unknown GPU, and the doctor's advice."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.devices import Gpu
from labkit.errors import UserError
from workbook import bootstrap, doctor
from workbook.hardware.host import Host
from workbook.hardware.matching import detect
from workbook.hardware.profile import PARAMS, load_profile
from workbook.paths import ROOT
from workbook.report.generate import write_profile

FUTURE_GPU = Gpu(
    name="NVIDIA Z900 (80 GB)",
    uuid_hash="0" * 12,
    memory_bytes=80 * 2**30,
    compute_capability="15.0",
    power_limit_w=1000.0,
)
HOST = Host(
    id="0123456789ab",
    gpus=(FUTURE_GPU,),
    driver="999",
    cpu="a CPU",
    cpu_cores=2,
    cpu_threads=2,
    cpu_features=(),
    memory_bytes=2**34,
    os="Linux",
    python="3.12.0",
    packages={"torch": "2.13.0"},
    commit=None,
    source="0",
)


@pytest.fixture
def params(tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(PARAMS, tmp_path / "params")
    return tmp_path / "params"


def test_an_unknown_gpu_gets_a_profile_that_then_matches_it(params: Path) -> None:
    assert detect(HOST, params) is None
    path = write_profile(HOST, params)
    assert path.name == "z900_80_gb.yaml"
    written = load_profile(path.stem, params)
    assert written.peaks.flop_per_s == {}, "nominal peaks come from a data sheet, not from a driver"
    assert written.device.board_power_w is not None and written.device.board_power_w.value == 1000
    assert written.sweep("01_training", "quick")["batch"] == [256]
    detected = detect(HOST, params)
    assert detected is not None and detected.name == "z900_80_gb"
    two = replace(HOST, gpus=(FUTURE_GPU, replace(FUTURE_GPU, name="NVIDIA Y"), FUTURE_GPU))
    path.unlink()
    path = write_profile(two, params)
    assert path.stem == "z900_80_gb_x2" and load_profile(path.stem, params).device.count == 2


@pytest.mark.parametrize(("name", "stem"), [("显卡", "gpu"), ("$x_1$ `b` [c](d)", "x_1_b_c_d"), ("../*: #1?", "1")])
def test_a_profile_keeps_every_sign_of_a_gpus_name(params: Path, name: str, stem: str) -> None:
    host = replace(HOST, gpus=(replace(FUTURE_GPU, name=name),))
    path = write_profile(host, params)
    assert path.parent == params and path.stem == stem
    assert load_profile(stem, params).title == name and (detected := detect(host, params)) and detected.name == stem


def test_an_existing_profile_is_never_overwritten(params: Path) -> None:
    path = write_profile(HOST, params)
    path.write_text(path.read_text().replace("Z900", "Y800"))
    before = path.read_text()
    with pytest.raises(UserError, match="exists but does not match"):
        write_profile(HOST, params)
    assert path.read_text() == before
    with pytest.raises(UserError, match="known already"):
        write_profile(replace(HOST, gpus=()), params)


def test_the_doctor_names_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "this_host", lambda **_: replace(HOST, gpus=(), foreign_gpus=("AMD GPU at PCI 1",)))
    findings = list(doctor.examine())
    text = " ".join(sentence for _, sentence in findings)
    assert "papermill is not installed: `make setup`" in text
    assert "AMD GPU at PCI 1: not supported" in text and "make report HW=cpu" in text
    assert any(fine is False for fine, _ in findings)


def test_the_doctor_finds_a_torch_without_code_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90"])
    for capability, fine in (("7.0", False), ("8.6", True), ("9.0", True), ("15.0", False)):
        gpu = replace(FUTURE_GPU, compute_capability=capability)
        (finding,) = doctor._torch_and_gpu(replace(HOST, gpus=(gpu,)))
        assert finding[0] is fine, capability
        assert fine or "TORCH_INDEX=https://download.pytorch.org/whl/cu126" in finding[1]


class Pip:
    """A stand-in for subprocess.call that keeps the commands and fails those that name an unavailable package."""

    def __init__(self, *unavailable: str) -> None:
        self.commands: list[str] = []
        self.unavailable = unavailable

    def __call__(self, command: list[str], **_: Any) -> int:
        self.commands.append(" ".join(command))
        return int(any(word in self.commands[-1] for word in self.unavailable))


@pytest.mark.parametrize(
    ("gpu", "reachable", "index", "unavailable", "installed"),
    [
        (False, True, "", (), r"--extra-index-url .*/whl/cpu torch==[\d.]+\+cpu torchvision==[\d.]+\+cpu$"),
        (False, False, "", (), r"pip torch==[\d.]+\+cpu$"),
        (False, False, "", ("+cpu",), r"pip torch==[\d.]+ torchvision==[\d.]+$"),
        (True, True, "", (), r"pip torch==[\d.]+ torchvision==[\d.]+$"),
        (False, True, "https://here/cu126", (), r"--index-url https://here/cu126 "),
    ],
    ids=["CPU index", "CPU wheel at hand", "no CPU build", "GPU", "TORCH_INDEX"],
)
def test_without_a_gpu_the_cpu_build_of_torch_is_installed_if_available(
    gpu: bool,
    reachable: bool,
    index: str,
    unavailable: tuple[str, ...],
    installed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip = Pip(*unavailable)
    monkeypatch.setattr(bootstrap.subprocess, "call", pip)
    monkeypatch.setattr(bootstrap, "_has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(bootstrap, "_answers", lambda _: reachable)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    monkeypatch.setenv("TORCH_INDEX", index)
    assert bootstrap._install_torch(["pip"])
    assert any(re.search(installed, command) for command in pip.commands), pip.commands
    if not gpu and not index and not unavailable:
        assert "+cpu" in pip.commands[0], "the CPU build is tried first, so no other is downloaded"


@pytest.mark.parametrize(
    ("what", "gpu", "index", "installed", "not_installed"),
    [
        ("tensorflow", True, "", r"constraints-tf\.txt tensorflow\[and-cuda\]==[\d.]+ keras numpy ", "torch"),
        ("tensorflow", False, "", r"constraints\.txt tensorflow_cpu==[\d.]+ keras numpy ", "cuda"),
        ("jax", True, "", r"-e .*\[jax-cuda13\]$", "cuda12"),
        ("jax", True, "https://download.pytorch.org/whl/cu126", r"-e .*\[jax-cuda12\]$", "cuda13"),
        ("jax", True, "https://download.pytorch.org/whl/cpu", r"-e .*\[jax\]$", "cuda"),
        ("jax", False, "", r"-e .*\[jax\]$", "cuda"),
    ],
)
def test_tensorflow_and_jax_are_installed_for_the_device_of_this_machine(
    what: str,
    gpu: bool,
    index: str,
    installed: str,
    not_installed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pip = Pip()
    monkeypatch.setattr(bootstrap.subprocess, "call", pip)
    monkeypatch.setattr(bootstrap, "_has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", str(tmp_path / "env"), what])
    monkeypatch.setenv("TORCH_INDEX", index)
    assert bootstrap.main() == 0
    assert "-m venv" in pip.commands[0] and str(tmp_path / "env") in pip.commands[0]
    command = pip.commands[-1].replace(str(ROOT), ".")
    assert re.search(installed, command), command
    assert not_installed not in command.split("pip install")[1].replace("constraints-tf.txt", "")
    monkeypatch.setattr(bootstrap.subprocess, "call", Pip("keras", "[jax"))
    assert bootstrap.main() == 2


def test_cuda_of_tensorflow_and_of_jax_is_pinned() -> None:
    """TensorFlow has its own file of pins, because torch pins other versions of the packages of CUDA 12."""
    main, tensorflow = (ROOT / name for name in ("constraints.txt", "constraints-tf.txt"))
    of_main, of_other = (re.findall(r"^([\w.-]+)==\d", path.read_text(), re.MULTILINE) for path in (main, tensorflow))
    assert not set(of_main) & set(of_other)
    assert {name for name in of_main if name.endswith("-cu12")} == set()
    assert all(re.fullmatch(r"nvidia-[a-z]+(-[a-z]+)?-cu12", name) for name in of_other) and len(of_other) > 8
    jax = set(re.findall(r"^jax[\w-]*==([\d.]+)$", main.read_text(), re.MULTILINE))
    assert len(jax) == 1, "JAX, its library and its plug-ins are of one version"


def test_every_package_that_pyproject_names_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    named += bootstrap.WORKER_NEEDS
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    for requirement in named:
        name = re.split(r"[;>=< \[]", requirement)[0].lower()
        assert name in pinned, name


def test_every_way_to_install_the_project_brings_the_suite() -> None:
    """Without the extra `workbook`, an installation has the helpers alone, and no command works."""
    for name in ("environment.yml", "constraints.txt", "workbook/bootstrap.py", "tests/supply/hashes.py"):
        extras = re.findall(r"[.}]\[([a-z,]*dev[a-z,]*)\]", (ROOT / name).read_text(encoding="utf-8"))
        assert set(extras) == {"workbook,dev"}, name


def test_documents_type_no_time_that_a_command_takes() -> None:
    """Machines differ, and typed times grow old: `make plan` gives them, and documents say "about an hour"."""
    times = re.compile(r"\b\d+(\.\d+)? ?(s|seconds?|min|minutes?|h|hours?)\b")
    results = ("s of training", "windows of at least 5 seconds")  # what was measured, and the method
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            assert any(text in line for text in results) or not times.search(line), f"{name}: {line}"


def test_the_readme_names_only_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        for target in re.findall(r"(?:`|^)make ([a-z][a-z-]+)", (ROOT / document).read_text(), re.MULTILINE):
            assert target in targets, f"{document}: make {target}"
    assert (ROOT / "docs" / "report-h200.png").is_file()


@pytest.mark.parametrize(("arguments", "kept"), [([], False), (["PYTHON=python3"], True)])
def test_only_in_labkits_own_environment_python_writes_bytecode(
    arguments: list[str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"):  # set by the make that runs the tests
        monkeypatch.delenv(name, raising=False)
    command = ["make", "-C", str(ROOT), *arguments, "--eval=environment: ; @env", "environment"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "LABKIT_PYTHON=" in output
    assert ("PYTHONDONTWRITEBYTECODE=1" in output) == kept, "a user's interpreter keeps its settings"
