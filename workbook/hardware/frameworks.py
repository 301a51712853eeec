"""The packages, interpreter and environment of each framework. This module imports no framework.

Keras chooses its back end at import, and each back end claims a GPU's memory for itself, so every framework has its own
processes (`workbook.runner`). TensorFlow may have its own interpreter too, because its CUDA 12 packages and PyTorch's
CUDA 13 packages write the same files. `python -m workbook.hardware.frameworks PACKAGE ...`, run by that interpreter,
prints the versions of its packages.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.files import python_path, users_path
from workbook.paths import ROOT
from workbook.registry import FRAMEWORK_TITLES

ASKED_S = 60.0  # in which an interpreter must list its packages, also from a cold network disk


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework. `packages` must be installed, and records of different versions of them are never pooled.

    `backend` is Keras's, empty for PyTorch itself. `variable` names an interpreter to use instead of the runner's.
    Without it, an interpreter in `folder` beside the project is used if there is one. `setup` says how to install it.
    """

    packages: tuple[str, ...]
    setup: str
    backend: str = ""
    variable: str = ""
    folder: str = ""


KNOWN: dict[str, Framework] = {
    "torch": Framework(packages=("torch",), setup="`make setup`"),
    "keras-torch": Framework(
        packages=("keras", "torch"), backend="torch", setup="`make setup`, or `pip install keras`"
    ),
    "keras-tensorflow": Framework(
        packages=("keras", "tensorflow"),
        backend="tensorflow",
        variable="TF_PYTHON",
        folder=".venv-tf",
        setup="`make setup-tf` makes it an environment of its own, or TF_PYTHON= names a Python that has it",
    ),
    "keras-jax": Framework(
        packages=("keras", "jax", "jaxlib"),
        backend="jax",
        variable="JAX_PYTHON",
        setup="`make setup-jax` adds it to .venv, or JAX_PYTHON= names a Python that has it (`pip install keras jax`, "
        "on a GPU `jax[cuda13]`)",
    ),
}
# Variable of a worker: the Python that runs labkit. A worker whose interpreter lacks PyTorch uses PyTorch there.
RUNNER_PYTHON = "LABKIT_RUNNER_PYTHON"
# Keras may load a back end besides the chosen one. So no back end may reserve a GPU's memory before it needs it, and
# TensorFlow's C++ code logs only warnings and errors.
_OF_KERAS = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def is_keras(name: str) -> bool:
    """Return whether the framework is Keras with one of its back ends."""
    return name in KNOWN and bool(KNOWN[name].backend)


def version_of(name: str, versions: Mapping[str, str]) -> str | None:
    """Return the framework's version, from the versions of packages; None if a package that it needs is missing.

    >>> version_of("torch", {"torch": "2.13.0"}), version_of("keras-jax", {"keras": "3.15.1"})
    ('2.13.0', None)
    """
    packages = KNOWN[name].packages if name in KNOWN else (name,)
    if any(package not in versions for package in packages):
        return None
    if len(packages) == 1:
        return versions[packages[0]]
    return ", ".join(f"{package} {versions[package]}" for package in packages)


def environment_of(name: str, device: str) -> dict[str, str]:
    """Return the environment variables of the framework's processes; empty for PyTorch.

    A process for the CPU sees no GPU. A process for a GPU fails without one, where JAX alone would use the CPU.
    """
    if not is_keras(name):
        return {}
    settings = {**_OF_KERAS, "KERAS_BACKEND": KNOWN[name].backend, RUNNER_PYTHON: sys.executable}
    if device == "cpu":
        return {**settings, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    return {**settings, "JAX_PLATFORMS": "cuda,cpu"}


def interpreter_of(name: str, *, given: Mapping[str, str] = os.environ, root: Path = ROOT) -> str:
    """Return the framework's Python: the one that the user names, else the framework's own, else this one."""
    about = KNOWN.get(name)
    if about is None:
        return sys.executable
    if named := given.get(about.variable, ""):
        return str(root / users_path(named)) if "/" in named else named
    own = root / about.folder / "bin" / "python"
    return str(own) if about.folder and own.exists() else sys.executable


def packages_of(name: str) -> Mapping[str, str]:
    """Return the versions of the framework's packages and of `python` in its interpreter; empty if it gives none."""
    return _packages(interpreter_of(name), KNOWN[name].packages)


def missing_from(name: str) -> list[str]:
    """Return the packages that the framework needs and its interpreter lacks; empty for an unknown framework."""
    if name not in KNOWN:
        return []
    here = packages_of(name)
    return [package for package in KNOWN[name].packages if package not in here]


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of `packages` that this interpreter has, and of its `python`."""
    versions = {"python": platform.python_version()}
    for name in packages:
        for distribution in (name, f"{name}-cpu"):  # tensorflow comes as tensorflow or tensorflow-cpu
            try:
                versions[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions


@cache
def _packages(interpreter: str, packages: tuple[str, ...]) -> Mapping[str, str]:
    """Return the versions of an interpreter's packages, cached; empty if it cannot be started."""
    if interpreter == sys.executable:
        return installed(packages)
    try:
        answer = subprocess.run(
            [interpreter, "-m", "workbook.hardware.frameworks", *packages],
            env={**os.environ, "PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
            check=True,
            timeout=ASKED_S,
        )
        versions = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return versions if isinstance(versions, dict) else {}


def title_of(name: str) -> str:
    """Return the framework's name for readers."""
    return FRAMEWORK_TITLES.get(name, name)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(installed(sys.argv[1:])))
