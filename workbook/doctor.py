"""`make doctor`: reports this machine's hardware, packages, matching profiles, and how to install what is missing."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterator

from labkit.devices import visible
from labkit.errors import UserError
from labkit.sensors import HELD_BYTES
from labkit.telemetry.sampling import sample
from workbook.hardware.frameworks import KNOWN, is_keras, title_of
from workbook.hardware.host import PACKAGES, Host, this_host
from workbook.hardware.matching import detect, mismatch
from workbook.hardware.profile import load_profile, profile_names
from workbook.paths import ROOT
from workbook.runner.available import ask

GIB = 2.0**30
REPORT_BYTES = 2 * GIB  # a generous estimate for caches and pages of a quick report


def examine() -> Iterator[tuple[bool | None, str]]:
    """Yield each finding as its state (True = fine, False = must be fixed, None = a note) and a sentence."""
    host = this_host()
    yield True, f"This machine: {host.summary()}; {host.os}, Python {host.python}; host id {host.id}."
    for note in host.notes:
        yield False, note
    for gpu in host.foreign_gpus:
        yield None, f"{gpu}: not supported. `make report HW=cpu` measures the CPU."
    yield from _profiles(host)
    yield from _packages(host)
    yield from _frameworks(host)
    if visible(host.gpus):
        with sample() as idle:
            pass
        for used in idle.used_before(HELD_BYTES):
            yield None, f"Others use {used}. Measure when the GPU is idle: their time and joules would count here."
        yield from _torch_and_gpu(host)
    yield _compiler(on_gpu=bool(host.gpus))
    free = shutil.disk_usage(ROOT).free
    yield free > REPORT_BYTES, f"Free disk: {free / GIB:.0f} GiB (a quick report wants {REPORT_BYTES / GIB:.0f})."


def _profiles(host: Host) -> Iterator[tuple[bool | None, str]]:
    try:
        detected = detect(host)
    except UserError as error:
        yield False, str(error)
        return
    if detected is None:
        yield None, "No profile matches this GPU: `make report` writes one; `make profile` writes it without measuring."
        return
    yield True, f"`make report` will use the profile {detected.name!r}: {detected.title}."
    fitting = [name for name in profile_names() if mismatch(load_profile(name), host) is None]
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
        return True, f"Engines that compile can use {compiler}."
    lost = "tuned trials" if on_gpu else "trials with the engine `compile`"
    return None, f"No compiler ({', '.join(wanted)}): {lost} will be rows marked unsupported. Install gcc or clang."


def _torch_and_gpu(host: Host) -> Iterator[tuple[bool | None, str]]:
    try:
        import torch
    except ImportError:
        return  # `_packages` reports it
    here, build = [host.gpus[index] for index in visible(host.gpus)], f"torch {torch.__version__}"
    capability = next((gpu.compute_capability for gpu in here if gpu.compute_capability), None)
    again = "remove .venv and run `make setup"
    if torch.version.cuda is None:
        yield False, f"{build} is a CPU build: {again}` on this machine, or give TORCH_INDEX."
        return
    if capability is None:
        yield None, f"The driver tells no compute capability, so whether {build} has code for the GPU is not known."
        return
    architectures = [name.removeprefix("sm_") for name in torch.cuda.get_arch_list() if name.startswith("sm_")]
    numbers = [int(name.rstrip("af")) for name in architectures]
    wanted = int(capability.replace(".", ""))
    # Machine code runs on later minor versions of the same major one.
    if any(number <= wanted and number // 10 == wanted // 10 for number in numbers):
        yield True, f"{build} (CUDA {torch.version.cuda}) has code for compute capability {capability}."
        return
    lacks = f"{build} has no code for compute capability {capability} (it has {', '.join(architectures)})"
    index = "https://download.pytorch.org/whl/cu126"
    yield False, f"{lacks}: {again} TORCH_INDEX={index}`, which serves Pascal and Volta."
