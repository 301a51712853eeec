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
from workbook.hardware import builds
from workbook.hardware.builds import Card, Torch
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
    for fact in ("papermill", "`make setup`", "AMD GPU at PCI 1: ", "make report HW=cpu"):
        assert fact in text
    assert any(fine is False for fine, _ in findings)


def test_the_doctor_goes_on_after_a_profile_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "profile_names", lambda: ["cpu", "mine"])
    ((fine, said),) = doctor._profiles(replace(HOST, gpus=()))
    assert fine is False and "'mine'" in said


def test_the_doctor_finds_a_torch_that_does_not_run_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed", lambda: Torch("2.13.0+cu130", "13.0"))
    monkeypatch.setattr(builds, "installed", doctor.installed)
    monkeypatch.setattr(doctor, "COMPUTE", "pass")
    for capability, fine in (("7.0", False), ("8.6", True), ("9.0", True), ("3.5", False)):
        gpu = replace(FUTURE_GPU, compute_capability=capability)
        (finding,) = doctor._torch_and_gpu(replace(HOST, gpus=(gpu,)))
        assert finding[0] is fine, capability
        assert (CU126 in finding[1]) == (capability == "7.0")


def test_the_doctor_notes_little_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path)
    for mib, noted in ((32, True), (512, True), (4096, False)):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, mib=mib: free._replace(total=mib * 2**20))
        assert [(fine, f"{mib} MiB" in said, "--shm-size" in said) for fine, said in doctor._shared_memory()] == (
            [(None, True, True)] * noted
        )
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "none")
    assert not list(doctor._shared_memory())


CU126 = builds.LEGACY.index


def machine_with(monkeypatch: pytest.MonkeyPatch, *, gpu: bool) -> None:
    """Let the set-up find one recent GPU, or none."""
    monkeypatch.setattr(bootstrap, "_cards", lambda: [Card("NVIDIA Z900", (15, 0), "999.1")] if gpu else [])
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _: None)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")


def test_the_doctor_computes_on_the_gpu_before_it_calls_it_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that waits for the fabric manager answers NVML, and CUDA does not start (error 802)."""
    monkeypatch.setattr(doctor, "installed", lambda: Torch("2.13.0+cu130", "13.0"))
    monkeypatch.setattr(builds, "installed", doctor.installed)
    monkeypatch.setattr(doctor, "COMPUTE", "raise RuntimeError('Error 802')")
    asked = replace(HOST, gpus=(replace(FUTURE_GPU, compute_capability="9.0"),))
    ((fine, said),) = doctor._torch_and_gpu(asked)
    assert fine is False and "Error 802" in said and "`nvidia-smi`" in said
    monkeypatch.setattr(doctor, "COMPUTE", "pass")
    assert [fine for fine, _ in doctor._torch_and_gpu(asked)] == [True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('operator torchvision::qnms does not exist')", "-m labkit.torchvision_import` mends it"),
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "`make setup` mends it"),
        ("", None),
    ],
)
def test_the_doctor_imports_torchvision_as_a_users_first_cell_does(
    text: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    findings = list(doctor._torchvision(replace(HOST, packages={"torchvision": "0.28.0"})))
    assert [(fine, said in sentence) for fine, sentence in findings if said] == [(False, True)] * bool(said)
    assert bool(findings) == bool(said) and not list(doctor._torchvision(HOST))


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
        (False, False, "", (), r"txt torch==[\d.]+\+cpu$"),
        (False, False, "", ("+cpu",), r"txt torch==[\d.]+ torchvision==[\d.]+$"),
        (True, True, "", (), r"txt torch==[\d.]+ torchvision==[\d.]+$"),
        (False, True, "https://here/cu126", (), r"--index-url https://here/cu126 "),
    ],
    ids=["CPU index", "CPU wheel at hand", "no CPU build", "GPU", "TORCH_INDEX"],
)
def test_without_a_gpu_the_cpu_build_of_torch_is_installed_if_available(
    gpu: bool, reachable: bool, index: str, unavailable: tuple[str, ...], installed: str, monkeypatch
) -> None:
    pip = Pip(*unavailable)
    monkeypatch.setattr(bootstrap.subprocess, "call", pip)
    machine_with(monkeypatch, gpu=gpu)
    monkeypatch.setattr(bootstrap, "_answers", lambda _: reachable)
    monkeypatch.setenv("TORCH_INDEX", index)
    assert bootstrap._install_torch(["pip", str(ROOT / "constraints.txt")], index or bootstrap._index())
    assert any(re.search(installed, command) for command in pip.commands), pip.commands
    if not gpu and not index and not unavailable:
        assert "+cpu" in pip.commands[0], "the CPU build is tried first, so no other is downloaded"


@pytest.mark.parametrize(
    ("what", "gpu", "index", "installed", "not_installed"),
    [
        ("tensorflow", True, "", r"constraints-tf\.txt tensorflow\[and-cuda\]==[\d.]+ keras numpy ", "torch"),
        ("tensorflow", False, "", r"constraints\.txt tensorflow_cpu==[\d.]+ keras numpy ", "cuda"),
        ("jax", True, "", r"-e .*\[jax-cuda13\]$", "cuda12"),
        ("jax", True, CU126, r"-e .*\[jax-cuda12\]$", "cuda13"),
        ("jax", True, "https://download.pytorch.org/whl/cpu", r"-e .*\[jax\]$", "cuda"),
        ("jax", False, "", r"-e .*\[jax\]$", "cuda"),
    ],
)
def test_tensorflow_and_jax_are_installed_for_the_device_of_this_machine(
    what: str, gpu: bool, index: str, installed: str, not_installed: str, tmp_path: Path, monkeypatch
) -> None:
    pip = Pip()
    monkeypatch.setattr(bootstrap.subprocess, "call", pip)
    machine_with(monkeypatch, gpu=gpu)
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", str(tmp_path / "env"), what])
    monkeypatch.setenv("TORCH_INDEX", index)
    (tmp_path / "env").mkdir()
    assert bootstrap.main() == 0
    assert "-m venv" in pip.commands[0] and str(tmp_path / "env") in pip.commands[0]
    command = pip.commands[-1].replace(str(ROOT), ".")
    assert re.search(installed, command), command
    assert not_installed not in command.split("pip install")[1].replace("constraints-tf.txt", "")
    monkeypatch.setattr(bootstrap.subprocess, "call", Pip("keras", "[jax"))
    assert bootstrap.main() == 2


SMI = """#!/bin/sh
case "$1" in
*compute_cap*) [ -n "{capability}" ] && echo "{name}, {driver}, {capability}" || exit 2 ;;
*) echo "{name}, {driver}, {number}" ;;
esac
"""
NEWEST, OLDER, NONE = "", CU126, bootstrap.CPU_INDEX


@pytest.mark.parametrize(
    ("name", "capability", "number", "driver", "index", "fact"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", "6.1", "0x1B0610DE", "550.54.14", OLDER, "CUDA 12.6"),
        ("NVIDIA TITAN V", "7.0", "0x1D8110DE", "580.95.05", OLDER, f"`make setup TORCH_INDEX={CU126}`"),
        ("NVIDIA GeForce GTX 980", "5.2", "0x13C010DE", "535.54.03", OLDER, f"`make setup TORCH_INDEX={CU126}`"),
        ("NVIDIA A100-SXM4-40GB", "8.0", "0x20B010DE", "535.54.03", OLDER, "driver 580"),
        ("NVIDIA A100-SXM4-40GB", "8.0", "0x20B010DE", "580.65.06", NEWEST, ""),
        ("NVIDIA GeForce RTX 5090", "12.0", "0x2B8510DE", "570.26", NONE, "580 or later, then type `rm -r"),
        ("Tesla M40", "", "0x17FD10DE", "470.57.02", NONE, "580, the last for this card, then type `rm -r .venv"),
        ("Tesla K40c", "", "0x102410DE", "470.57.02", NONE, "HW=cpu"),
    ],
)
def test_setup_installs_only_a_build_that_runs_on_the_card(
    name: str, capability: str, number: str, driver: str, index: str, fact: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    pip, smi, folder = Pip(), tmp_path / "nvidia-smi", tmp_path / ".venv"
    smi.write_text(SMI.format(name=name, capability=capability, number=number, driver=driver))
    smi.chmod(0o755)
    folder.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(bootstrap.subprocess, "call", pip)
    monkeypatch.setattr(bootstrap, "_answers", lambda _: True)
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", str(folder)])
    assert bootstrap.main() == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("labkit: ")]
    assert len(told) == bool(fact) and all(name in line and fact in line for line in told), told
    assert (folder / ".torch-index").read_text() == index, "a later TORCH_INDEX= may name the same, and JAX follows it"
    installs = [command for command in pip.commands if "pip install" in command]
    assert ("+cu126" in installs[0], "/whl/cpu" in installs[0]) == (index == OLDER, index == NONE)
    if index == OLDER:
        [pins] = {re.search(r"-c (\S+)", command)[1] for command in installs}  # type: ignore[index]
        lines = Path(pins).read_text().splitlines()
        assert sum(line.startswith(("torch==", "torchvision==")) for line in lines) == 2, (
            "pip refuses two pins of a package"
        )
        assert len(lines) > 100 and not any(line.startswith("-") for line in lines)


def test_a_card_without_a_driver_needs_the_last_one_of_its_generation(tmp_path: Path) -> None:
    for place, number in enumerate(("0x1c82", "0x1180", "0x2504"), start=1):
        card = tmp_path / f"0000:0{place}:00.0"
        card.mkdir()
        for file, text in (("vendor", "0x10de"), ("class", "0x030000"), ("device", number)):
            (card / file).write_text(text + "\n")
    pascal, kepler, ampere = (builds.build_for(card, again="`make setup`") for card in builds.cards_on_bus(tmp_path))
    assert {build for build, _ in (pascal, kepler, ampere)} == {None}
    for (_, said), facts in ((pascal, ("580, the last", "`make setup`")), (kepler, ("HW=cpu",)), (ampere, ("580 or",))):
        assert all(fact in said for fact in facts), said


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


DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/reviewing.md")


def test_documents_type_no_time_that_a_command_takes() -> None:
    """Machines differ, and typed times grow old: `make plan` gives them, and documents say "about an hour"."""
    times = re.compile(r"\b\d+(\.\d+)? ?(s|seconds?|min|minutes?|h|hours?)\b")
    results = ("s of training", "windows of at least 5 seconds")  # what was measured, and the method
    for name in DOCUMENTS:
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            assert any(text in line for text in results) or not times.search(line), f"{name}: {line}"


def test_documents_name_only_targets_that_make_help_lists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        for target in re.findall(r"(?:`|^ *)make ([a-z][a-z-]+)", (ROOT / document).read_text(), re.MULTILINE):
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
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "LABKIT_PYTHON=" in output
    assert ("PYTHONDONTWRITEBYTECODE=1" in output) == kept, "a user's interpreter keeps its settings"
