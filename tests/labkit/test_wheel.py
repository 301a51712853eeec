"""The wheel in an environment that has what labkit declares and nothing else, Jupyter in particular."""

from __future__ import annotations

import importlib.metadata as metadata
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.commands import ROOT

pytest.importorskip("torch")
pytest.importorskip("setuptools", minversion="77")

HELPERS = """
import sys
import labkit
assert "site-packages" in labkit.__file__, labkit.__file__
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "pandas", "pydantic", "scipy"}))
import torch
network = labkit.build("resnet18", classes=10)
images = labkit.loader("synthetic32", batch=8, device="cpu", train_images=32, val_images=8)
pixels, labels = images.next_batch()
with labkit.sample() as sampled:
    timing = labkit.time_step(lambda: network(pixels), images_per_step=8, device="cpu", warmup_s=0.05, timed_s=0.1)
assert timing.images_per_s > 0 and len(sampled.summary())
assert len(labkit.open_data("synthetic32", train_images=32, val_images=8).val) == 8
assert labkit.count("resnet18", image_px=64).parameters == 11689512
try:
    labkit.open_data("digits")
except labkit.errors.UserError as error:
    print(error)
suite = {"workbook", "IPython", "jupyterlab", "papermill", "nbconvert", "scrapbook", "tensorflow", "typer", "sklearn"}
print(sorted(suite & set(sys.modules)))
"""


def closure(name: str) -> set[str]:
    """Return the distributions that `pip install` of this project without extras would bring."""
    needed, left = set(), [name]
    while left:
        found = left.pop()
        if found in needed:
            continue
        needed.add(found)
        requirements = map(Requirement, metadata.requires(found) or [])
        left += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return needed - {name}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with labkit's wheel and links to the packages that labkit declares."""
    try:
        metadata.distribution("labkit")
    except metadata.PackageNotFoundError:
        pytest.skip("labkit is not installed in this Python, which therefore does not list what it needs")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in ("labkit", "workbook"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in closure("labkit"):
        files = metadata.files(name) or []
        for entry in {file.parts[0] for file in files} - {"..", "__pycache__", "bin"}:
            if not (packages / entry).exists():
                (packages / entry).symlink_to(Path(str(metadata.distribution(name).locate_file(entry))))
    pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, *folder.glob("labkit-*.whl")], check=True)
    return python


def test_the_helpers_work_with_what_labkit_declares(fresh: Path, tmp_path: Path) -> None:
    command = ["env", f"LABKIT_CACHE={tmp_path}", fresh, "-I", "-c", HELPERS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not done.returncode, done.stderr
    at_import, digits, of_suite = done.stdout.splitlines()
    assert at_import == "[]", "importing labkit imports no package"
    assert "pip install scikit-learn" in digits
    assert of_suite == "[]"


def test_the_command_says_what_to_install(fresh: Path, tmp_path: Path) -> None:
    command = [fresh.with_name("labkit"), "report"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install -e '.[workbook]'" in done.stderr
