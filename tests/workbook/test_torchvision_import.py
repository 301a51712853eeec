"""Tests of torchvision beside a torch for which its operators are not compiled, in a Python that knows no labkit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.torchvision_import import repair_environment
from workbook import bootstrap

NETWORK = "import torchvision; print(type(torchvision.models.vit_b_16()).__name__)"
# Another Python: it has this one's packages, and runs the `.pth` files of `folder` alone.
PYTHON = """#!{python} -IS
import site, sys
sys.path += {packages}
import torch
{operators}
site.addsitedir({folder!r})
assert "labkit" not in sys.modules
exec(sys.argv[2])
"""
MISSING = """
def unloadable(path):
    raise OSError(path)
torch.ops.load_library = unloadable
"""
THERE = """
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    return folder


def python(packages: Path, operators: str) -> str:
    """Write an executable that stands for the Python of an environment, and return its path."""
    path = packages.parent / "python"
    paths = [entry for entry in sys.path if entry.endswith("-packages")]
    text = PYTHON.format(python=sys.executable, packages=paths, operators=operators, folder=str(packages))
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def made(interpreter: str) -> str:
    """Return what a new process of the interpreter says when it builds a network in one line."""
    said = subprocess.run([interpreter, "-c", NETWORK], capture_output=True, text=True)
    return said.stdout.strip() or said.stderr[-300:]


def test_every_python_of_an_environment_imports_torchvision_without_its_operators(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreter = python(packages, MISSING)
    assert "operator torchvision::nms does not exist" in made(interpreter)
    monkeypatch.setattr(sys, "executable", interpreter)
    repair_environment(str(packages))
    assert made(interpreter) == "VisionTransformer"


def test_an_environment_whose_operators_load_stays_as_it_is(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = python(packages, THERE)
    assert made(interpreter) == "VisionTransformer"
    (packages / "labkit_torchvision_import.pth").write_text("import left_by_an_earlier_setup\n")
    monkeypatch.setattr(sys, "executable", interpreter)
    repair_environment(str(packages))
    assert list(packages.glob("*.pth")) == []


def test_the_set_up_repairs_torchvision_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(bootstrap.subprocess, "call", lambda command, **_: commands.append(command) or 0)
    (tmp_path / "env").mkdir()
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", str(tmp_path / "env")])
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    assert bootstrap.main() == 0
    assert commands[-1] == [str(tmp_path / "env/bin/python"), "-m", "labkit.torchvision_import"]
