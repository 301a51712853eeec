"""What each framework needs: packages, an interpreter, an environment. None of them is imported here.

Keras chooses its back end when it is imported, and each back end wants a GPU's memory for itself, so every framework
has processes of its own (`labkit.run`). TensorFlow may have an interpreter of its own too, since its CUDA 12 packages
and the CUDA 13 ones of PyTorch write the same files. `python -m labkit.hardware.frameworks PACKAGE ...` asks that
interpreter for versions.
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

from labkit.places import ROOT
from labkit.registry import FRAMEWORK_TITLES

ASKED_S = 60.0  # in which an interpreter says which packages it has, from a cold network disk too


@dataclass(frozen=True, kw_only=True)
class Framework:
    """`packages` must be there, and records of other versions of them are never pooled.

    `backend` is Keras's, empty for PyTorch itself. `variable` names an interpreter to use instead of the runner's own;
    without it one in `folder` beside the project is used where there is one. `setup` says how to get what is missing.
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
# In a worker's environment, the Python that runs labkit: a worker whose own Python has no PyTorch can ask it there.
RUNNER_PYTHON = "LABKIT_RUNNER_PYTHON"
# Whatever back end Keras was given, it may touch another's: none of them takes a GPU's memory before it needs it, and
# of what TensorFlow's C++ says its warnings and errors are kept.
_OF_KERAS = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def is_keras(name: str) -> bool:
    """Whether trials of this framework are Keras's."""
    return name in KNOWN and bool(KNOWN[name].backend)


def version_of(name: str, versions: Mapping[str, str]) -> str | None:
    """The framework's version among those of packages; None where one that it needs is missing.

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
    """What a process of the framework finds in its environment; empty of PyTorch.

    A process for trials on the CPU sees no GPU. One for trials on a GPU fails without it: JAX would take the CPU.
    """
    if not is_keras(name):
        return {}
    settings = {**_OF_KERAS, "KERAS_BACKEND": KNOWN[name].backend, RUNNER_PYTHON: sys.executable}
    if device == "cpu":
        return {**settings, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    return {**settings, "JAX_PLATFORMS": "cuda,cpu"}


def interpreter_of(name: str, *, given: Mapping[str, str] = os.environ, root: Path = ROOT) -> str:
    """The Python whose packages the framework's processes use: named by the user, set up for it, or this one."""
    about = KNOWN.get(name)
    if about is None:
        return sys.executable
    if named := given.get(about.variable, ""):
        return str(root / Path(named).expanduser()) if "/" in named else named
    own = root / about.folder / "bin" / "python"
    return str(own) if about.folder and own.exists() else sys.executable


def packages_of(name: str) -> Mapping[str, str]:
    """Versions of the framework's packages that its interpreter has, and of that `python`; empty if it says nothing."""
    return _packages(interpreter_of(name), KNOWN[name].packages)


def missing_from(name: str) -> list[str]:
    """The packages that the framework needs and its interpreter lacks; empty of a framework that nobody knows."""
    if name not in KNOWN:
        return []
    here = packages_of(name)
    return [package for package in KNOWN[name].packages if package not in here]


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that this interpreter has, and of this `python`."""
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
    """What an interpreter has installed, asked once; empty where it can't be started."""
    if interpreter == sys.executable:
        return installed(packages)
    try:
        answer = subprocess.run(
            [interpreter, "-m", "labkit.hardware.frameworks", *packages],
            env={**os.environ, "PYTHONPATH": path_of_workers()},
            capture_output=True,
            text=True,
            check=True,
            timeout=ASKED_S,
        )
        versions = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return versions if isinstance(versions, dict) else {}


def path_of_workers() -> str:
    """PYTHONPATH of a process that imports labkit, whatever folder it runs in and whichever Python runs it."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def title_of(name: str) -> str:
    """What people call it."""
    return FRAMEWORK_TITLES.get(name, name)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(installed(sys.argv[1:])))
