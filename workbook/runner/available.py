"""Finds out whether a framework can run trials on this machine.

The runner imports no framework. It reads installed packages from their metadata. `workbook.runner.probe`, a short
process of the framework's interpreter, tells whether the framework works there and on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any, NamedTuple

from labkit.files import python_path
from workbook.hardware.frameworks import (
    KNOWN,
    environment_of,
    interpreter_of,
    is_keras,
    missing_from,
    packages_of,
    title_of,
)
from workbook.runner.protocol import without_paths

ANSWERS_S = 300.0  # importing a framework from a cold network disk can take minutes
SAID_CHARACTERS = 300


class Answer(NamedTuple):
    """A framework's answer: `sees` names the GPU it computed on, empty on a CPU; `reason` is why it cannot run here."""

    sees: str = ""
    reason: str | None = None


def why_not(framework: str, device: str, *, gpu: str = "") -> str | None:
    """Return why no trial of a framework can run on a kind of device here, and what to do; None if trials can run.

    PyTorch is never probed, because its trials report what they lack. `gpu` and caching are as in `ask`.
    """
    return ask(framework, device, gpu=gpu).reason if is_keras(framework) else None


def ask(framework: str, device: str, *, gpu: str = "") -> Answer:
    """Return whether a framework of Keras works here on `device`, `cpu` or `cuda`. The answer is cached.

    `gpu` is a value of CUDA_VISIBLE_DEVICES, whose first GPU is probed; without it, the first GPU of this process.
    """
    visible = gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return _ask(framework, device, interpreter_of(framework), visible.split(",")[0])


@cache
def _ask(framework: str, device: str, interpreter: str, gpu: str) -> Answer:
    about, elsewhere = KNOWN[framework], interpreter != sys.executable
    named = os.environ.get(about.variable)
    python = f"the Python that {about.variable} names" if named else f"the Python of {about.folder}"
    where = f" in {python}" if elsewhere else ""
    if elsewhere and not packages_of(framework):
        return _refused(framework, f"{python} does not answer")
    if lacking := missing_from(framework):
        lacked = ", ".join(lacking[:-1]) + (" and " if lacking[1:] else "") + lacking[-1]
        return _refused(framework, f"{lacked} {'are' if lacking[1:] else 'is'} not installed{where}")
    if device == "cpu" and not elsewhere:
        return Answer()  # the packages are here, and importing them takes seconds
    try:
        return _answer(framework, device, interpreter, gpu)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _refused(framework, f"{_said(error)}{where}")


def _answer(framework: str, device: str, interpreter: str, gpu: str) -> Answer:
    """Run the probe and return its answer. Raise OSError, ValueError or SubprocessError if it gives none."""
    visible = {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    probe = subprocess.run(
        [interpreter, "-m", "workbook.runner.probe", framework, device],
        env={**os.environ, "PYTHONPATH": python_path(), **visible, **environment_of(framework, device)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=ANSWERS_S,
    )
    answer: dict[str, Any] = json.loads(probe.stdout.splitlines()[-1]) if probe.stdout.strip() else {}
    if "reason" in answer:
        return _refused(framework, str(answer["reason"]))
    return Answer(sees=str(answer["sees"])) if "sees" in answer else _refused(framework, "it gave no answer")


def _refused(framework: str, why: str) -> Answer:
    return Answer(reason=without_paths(f"{title_of(framework)} can't run here: {why}. {KNOWN[framework].setup}"))


def _said(error: Exception) -> str:
    """Return what went wrong with the probe's process."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it gave no answer within {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line.strip() for line in (error.stderr or "").splitlines() if line.strip()]
        return f"it ended with code {error.returncode}{': ' + lines[-1][:SAID_CHARACTERS] if lines else ''}"
    return f"{type(error).__name__}: {error}"[:SAID_CHARACTERS]
