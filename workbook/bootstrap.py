"""Makes a virtual environment: `python3 -I workbook/bootstrap.py .venv [torch|tensorflow|jax]`. Standard library only.

`torch`, the default, installs everything but JAX. Without TORCH_INDEX, a machine without an NVIDIA GPU gets a CPU build
of torch if one is available, which saves several GB of CUDA packages; a machine with such a GPU gets PyPI's default
build. `tensorflow` installs the needs of labkit's workers for Keras on TensorFlow, with CUDA 12 if there is a GPU. It
takes its own folder, because its CUDA packages and torch's write the same files. `jax` adds JAX to torch's folder,
with the same CUDA as torch.
"""

import os
import platform
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

SUPPORTED = ((3, 11), (3, 13))
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ROOT = Path(__file__).resolve().parent.parent
# Packages that a worker process imports besides its framework (`workbook.runner.worker`, data sets, host).
WORKER_NEEDS = ("numpy", "psutil", "pydantic", "pyyaml", "scikit-learn", "tqdm")


def main() -> int:
    """Create or complete the environment in the given folder. Return 0, or 2 after a message on what to do."""
    target = sys.argv[2] if len(sys.argv) == 3 else "torch"
    if len(sys.argv) not in (2, 3) or target not in INSTALLS:
        return _refuse(f"usage: python3 -I workbook/bootstrap.py FOLDER [{'|'.join(INSTALLS)}]")
    if not SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        supported = _supported_python()
        if supported:
            return subprocess.call([supported, "-I", __file__, *sys.argv[1:]])
        return _refuse(
            f"labkit needs Python 3.11, 3.12 or 3.13, and this is {_version()}. Install one of them (for example the "
            "packages python3.12 and python3.12-venv), or name an interpreter that has the packages: "
            "make report PYTHON=/path/python3"
        )
    index = os.environ.get("TORCH_INDEX", "")
    is_index = index.startswith(("https://", "http://", "file://")) or os.path.isdir(index)  # noqa: PTH112
    if index and not is_index:  # pip would take torch from PyPI instead
        return _refuse(
            f"TORCH_INDEX={index!r} is no address of a package index; give one such as "
            "https://download.pytorch.org/whl/cu126, or leave it out for the build that fits this machine."
        )
    folder = Path(sys.argv[1]).absolute()
    python = folder / "bin" / "python"
    if subprocess.call([str(python), "-c", "import pip"], stderr=subprocess.DEVNULL) if python.exists() else True:
        _say(f"[1/{'3' if target == 'torch' else '2'}] making {folder.name} with Python {_version()}")
        if subprocess.call([sys.executable, "-m", "venv", "--clear", str(folder)]):
            return _refuse("no virtual environment could be made: install Python's venv (Debian: python3-venv).")
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-compile"]
    pip += ["-c", str(ROOT / "constraints.txt")]
    return INSTALLS[target](pip)


def _torch(pip: "list[str]") -> int:
    _say("[2/3] installing torch")
    if not _install_torch(pip):
        return _refuse(
            "torch could not be installed: see pip's message above. Fix that and run the same command again."
        )
    _say("[3/3] installing JupyterLab, TensorFlow and the rest (a few minutes)")
    if subprocess.call([*pip, "-e", f"{ROOT}[workbook,dev]"]):
        return _refuse(FAILED)
    # The index of a CPU build of torch may have none of torchvision, and PyPI's does not fit it.
    return subprocess.call([pip[0], "-m", "labkit.torchvision_import"], cwd=ROOT)


def _tensorflow(pip: "list[str]") -> int:
    """Install the CUDA build for a GPU; for a CPU the smaller package if there is one, as in pyproject.toml."""
    if _has_nvidia_gpu() and sys.platform == "linux":
        _say("[2/2] installing TensorFlow with CUDA 12 and what labkit's workers need (a few minutes)")
        wanted = ["-c", str(ROOT / "constraints-tf.txt"), *_pins("tensorflow", extra="[and-cuda]")]
    else:
        _say("[2/2] installing TensorFlow for the CPU and what labkit's workers need")
        small = sys.platform == "linux" and platform.machine() == "x86_64"
        wanted = _pins("tensorflow_cpu" if small else "tensorflow")
    return _refuse(FAILED) if subprocess.call([*pip, *wanted, "keras", *WORKER_NEEDS]) else 0


def _jax(pip: "list[str]") -> int:
    """Install JAX with torch's CUDA version, taken from TORCH_INDEX: 13, or 12 for Pascal and Volta."""
    gpu, index = _has_nvidia_gpu() and sys.platform == "linux", os.environ.get("TORCH_INDEX", "")
    extra = ("jax-cuda12" if "/cu12" in index else "jax-cuda13") if gpu and "/cpu" not in index else "jax"
    _say(f"[2/2] installing JAX ({extra})")
    return _refuse(FAILED) if subprocess.call([*pip, "-e", f"{ROOT}[{extra}]"]) else 0


def _install_torch(pip: "list[str]") -> bool:
    pins = _pins("torch", "torchvision")
    index = os.environ.get("TORCH_INDEX", "")
    if index:
        return subprocess.call([*pip, *pins, "--index-url", index, "--extra-index-url", "https://pypi.org/simple"]) == 0
    if _has_nvidia_gpu() or sys.platform != "linux":
        return subprocess.call([*pip, *pins]) == 0
    # A local wheel (PIP_FIND_LINKS) may be a CPU build, so the CPU build is tried without the index too.
    reachable = ["--extra-index-url", CPU_INDEX] if _answers(CPU_INDEX + "/torch/") else []
    cpu = [pin + "+cpu" for pin in (pins if reachable else pins[:1])]
    if subprocess.call([*pip, *reachable, *cpu], stderr=subprocess.DEVNULL) == 0:
        return subprocess.call([*pip, *pins]) == 0
    _say("      no CPU build of torch is available here: installing the default build, which is large")
    return subprocess.call([*pip, *pins]) == 0


def _pins(*names: str, extra: str = "") -> "list[str]":
    """Return the packages as `name[extra]==version`, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.split("#")[0].strip() for name in names for line in lines if line.startswith(name + "==")]
    return [pin.replace("==", extra + "==") for pin in pins]


def _has_nvidia_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - a constant https URL
            return True
    except OSError:
        return False


def _version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _supported_python() -> str:
    for minor in range(SUPPORTED[1][1], SUPPORTED[0][1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        # A shim may exist for a version that is not installed.
        if path and subprocess.call([path, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return path
    return ""


def _say(text: str) -> None:
    print(text, flush=True)


def _refuse(text: str) -> int:
    print("labkit: " + text, file=sys.stderr)
    return 2


FAILED = "pip failed: see its message above. Fix that and run the same command again, which continues."
INSTALLS = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}

if __name__ == "__main__":
    sys.exit(main())
