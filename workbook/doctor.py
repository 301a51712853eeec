"""`make doctor`: reports this machine's hardware, packages, matching profiles, and how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from labkit.devices import visible
from labkit.errors import UserError
from labkit.sensors import HELD_BYTES
from labkit.telemetry.sampling import sample
from workbook.hardware.builds import card_of, installed, why_not
from workbook.hardware.frameworks import KNOWN, is_keras, title_of
from workbook.hardware.host import PACKAGES, Host, this_host
from workbook.hardware.matching import detect, other_hardware
from workbook.hardware.profile import load_profile, profile_names
from workbook.paths import ROOT
from workbook.runner.available import ask

GIB = 2.0**30
COMPUTE = "import torch; torch.ones(2, device='cuda').sum().item()"
REPORT_BYTES = 2 * GIB  # a generous estimate for caches and pages of a quick report
SHARED_BYTES = GIB  # of loaders' processes with images of 224 px, and of NCCL
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is looked at, and no file is made


def examine() -> Iterator[tuple[bool | None, str]]:
    """Yield each finding as its state (True = fine, False = must be fixed, None = a note) and a sentence."""
    host = this_host()
    yield True, f"This machine: {host.summary()}; {host.os}, Python {host.python}; machine {host.id}."
    yield None, f"The id of the machine goes by {host.recognised_by}."
    for note in host.notes:
        yield False, note
    for gpu in host.foreign_gpus:
        yield None, f"{gpu}: not supported. `make report HW=cpu` measures the CPU."
    yield from _profiles(host)
    yield from _packages(host)
    yield from _torchvision(host)
    yield from _frameworks(host)
    if visible(host.gpus):
        with sample() as idle:
            pass
        for used in idle.used_before(HELD_BYTES):
            yield None, f"Others use {used}. Measure when the GPU is idle: their time and joules would count here."
        yield from _torch_and_gpu(host)
    yield _compiler(on_gpu=bool(host.gpus))
    free = shutil.disk_usage(ROOT).free
    yield from _shared_memory()
    yield free > REPORT_BYTES, f"Free disk: {free / GIB:.0f} GiB (a quick report wants {REPORT_BYTES / GIB:.0f})."


def _profiles(host: Host) -> Iterator[tuple[bool | None, str]]:
    try:
        detected = detect(host)
        fitting = [name for name in profile_names() if other_hardware(load_profile(name), host) is None]
    except UserError as error:
        yield False, str(error)
        return
    if detected is None:
        yield None, "No profile matches this GPU: `make report` writes one; `make profile` writes it without measuring."
        return
    yield True, f"`make report` will use the profile {detected.name!r}: {detected.title}."
    alternatives = [name for name in fitting if name != detected.name]
    if alternatives:
        yield None, f"Other profiles that match: {', '.join(alternatives)} (HW=…)."


def _packages(host: Host) -> Iterator[tuple[bool | None, str]]:
    of_frameworks = {package for name, spec in KNOWN.items() if is_keras(name) for package in spec.packages} - {"torch"}
    lacking = [name for name in PACKAGES if name not in host.packages and name not in of_frameworks]
    here = ", ".join(f"{name} {version}" for name, version in host.packages.items())
    yield True, f"Packages: {here}."
    for name in lacking:
        # A GPU host with its own torch runs the workbook without JupyterLab.
        fine = None if name == "jupyterlab" else False
        yield fine, f"{name} is not installed: `make setup`, or {sys.executable} -m pip install {name}."
    try:
        importlib.metadata.version("pynvml")
        yield None, "The distribution `pynvml` is deprecated and shadows nvidia-ml-py: pip uninstall pynvml."
    except importlib.metadata.PackageNotFoundError:
        pass


def _torchvision(host: Host) -> Iterator[tuple[bool | None, str]]:
    """Yield what is wrong if `import torchvision` fails in a fresh process, where labkit has not repaired it."""
    if "torchvision" not in host.packages:
        return  # `_packages` reports it
    tried = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True, check=False)
    if tried.returncode:
        why = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
        mends = f"{sys.executable} -m labkit.torchvision_import`" if "operator torchvision::" in why else "make setup`"
        yield False, f"`import torchvision` fails: {why}. `{mends} mends it, or install the torchvision of your torch."


def _frameworks(host: Host) -> Iterator[tuple[bool | None, str]]:
    """Yield each framework's version and device, or how to install it. Only one study needs more than PyTorch."""
    device, versions = "cuda" if host.gpus else "cpu", host.framework_versions()
    for name in KNOWN:
        answer = ask(name, device) if is_keras(name) else None
        if answer and answer.reason:
            yield None, f"{answer.reason}."
        elif answer:
            yield True, f"{title_of(name)}: {versions.get(name)}, on {answer.sees or 'the CPU'}."
        elif name in versions:
            yield True, f"{title_of(name)}: {name} {versions[name]}."


def _compiler(*, on_gpu: bool) -> tuple[bool | None, str]:
    """Return a finding on compilers: Triton builds launchers with a C compiler, Inductor CPU kernels with a C++ one."""
    wanted = ("cc", "gcc", "clang") if on_gpu else ("g++", "c++", "clang++")
    compiler = next(filter(None, map(shutil.which, wanted)), None)
    if compiler:
        return True, f"Modes that compile can use {compiler}."
    lost = "tuned configurations" if on_gpu else "the mode `compile`"
    return None, f"No compiler ({', '.join(wanted)}): {lost} will be rows marked unsupported. Install gcc or clang."


def _shared_memory() -> Iterator[tuple[bool | None, str]]:
    """Yield a note if worker processes have little memory to share: Docker's default is 64 MB."""
    if not SHARED_MEMORY.is_dir() or (size := shutil.disk_usage(SHARED_MEMORY).total) >= SHARED_BYTES:
        return
    lacks = f"{SHARED_MEMORY} has {size / 2**20:.0f} MiB, which loaders of large images or several GPUs may exceed"
    yield None, f"{lacks}. In a container, start it with --shm-size={SHARED_BYTES / GIB:.0f}g or --ipc=host."


def _torch_and_gpu(host: Host) -> Iterator[tuple[bool | None, str]]:
    torch = installed()
    if torch is None:
        return  # `_packages` reports it
    here = {card_of(host.gpus[index], host.driver) for index in visible(host.gpus)}
    for card in sorted(here, key=lambda card: card.name):
        if why := why_not(card):
            yield False, why
        else:
            failure = _failure_on_gpu(torch.cuda)
            yield not failure, f"torch {torch.version} (CUDA {torch.cuda}) {failure or f'computes on {card.name}'}."


def _failure_on_gpu(cuda: str | None) -> str:
    """Return why PyTorch cannot compute on the GPU and what to do; empty if it can. A fresh process tries it."""
    asked = subprocess.run(
        [sys.executable, "-c", COMPUTE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if asked.returncode == 0:
        return ""
    said = [line for line in asked.stderr.splitlines() if line.strip()] or [f"exit code {asked.returncode}"]
    return (
        f"can't use the GPU ({said[-1].strip()}), so its configurations would be marked unsupported. Make `nvidia-smi` "
        f"list it without an error, with a driver for CUDA {cuda} or later; a GPU with NVSwitch needs NVIDIA's fabric "
        "manager too. Then run `make doctor` again"
    )
