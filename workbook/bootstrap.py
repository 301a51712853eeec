"""Makes a virtual environment: `python3 -I workbook/bootstrap.py .venv [torch|tensorflow|jax]`. Standard library only.

`torch`, the default, installs everything but JAX. Without TORCH_INDEX, a machine gets the build of torch that runs on
its newest NVIDIA GPU (`workbook.hardware.builds`): PyPI's, or the one for CUDA 12.6 with the pins of
constraints-cu126.txt. A machine on which none runs gets a CPU build if one is available, which saves several GB of CUDA
packages. `tensorflow` installs the needs of labkit's workers for Keras on TensorFlow, with CUDA 12 if there is a GPU.
It takes its own folder, because its CUDA packages and torch's write the same files. `jax` adds JAX to torch's folder,
with the same CUDA.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

TYPE_CHECKING = False  # an unsupported Python, which may lack it, reads this module too
if TYPE_CHECKING:
    from workbook.hardware.builds import Card

SUPPORTED = ((3, 11), (3, 13))
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ROOT = Path(__file__).resolve().parent.parent
DRIVER = Path("/proc/driver/nvidia/version")
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
            os.execv(supported, [supported, "-I", __file__, *sys.argv[1:]])  # noqa: S606 - there is no shell
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
    index = index or _index()
    return INSTALLS[target]([*pip, "-c", str(_constraints(folder, index))], index)


def _torch(pip: "list[str]", index: str) -> int:
    _say("[2/3] installing torch")
    if not _install_torch(pip, index):
        return _refuse(
            "torch could not be installed: see pip's message above. Fix that and run the same command again."
        )
    # `make setup-jax` takes the same CUDA, and a later TORCH_INDEX= must be the same.
    Path(pip[0]).parents[1].joinpath(".torch-index").write_text(index, encoding="utf-8")
    _say("[3/3] installing JupyterLab, TensorFlow and the rest (a few minutes)")
    if subprocess.call([*pip, "-e", f"{ROOT}[workbook,dev]"]):
        return _refuse(FAILED)
    # The index of a CPU build of torch may have none of torchvision, and PyPI's does not fit it.
    return subprocess.call([pip[0], "-m", "labkit.torchvision_import"], cwd=ROOT)


def _tensorflow(pip: "list[str]", index: str) -> int:
    """Install the CUDA build for a GPU; for a CPU the smaller package if there is one, as in pyproject.toml."""
    if "/cpu" not in index and sys.platform == "linux":
        _say("[2/2] installing TensorFlow with CUDA 12 and what labkit's workers need (a few minutes)")
        wanted = ["-c", str(ROOT / "constraints-tf.txt"), *_pins(Path(pip[-1]), "tensorflow", extra="[and-cuda]")]
    else:
        _say("[2/2] installing TensorFlow for the CPU and what labkit's workers need")
        small = sys.platform == "linux" and platform.machine() == "x86_64"
        wanted = _pins(Path(pip[-1]), "tensorflow_cpu" if small else "tensorflow")
    return _refuse(FAILED) if subprocess.call([*pip, *wanted, "keras", *WORKER_NEEDS]) else 0


def _jax(pip: "list[str]", index: str) -> int:
    """Install JAX with torch's CUDA version: 13, or 12 for cards before Turing."""
    gpu = "/cpu" not in index and sys.platform == "linux"
    extra = ("jax-cuda12" if "/cu12" in index else "jax-cuda13") if gpu else "jax"
    _say(f"[2/2] installing JAX ({extra})")
    return _refuse(FAILED) if subprocess.call([*pip, "-e", f"{ROOT}[{extra}]"]) else 0


def _index() -> str:
    """Return the index of the build for this machine's newest card, or of the CPU build, and say why it is not PyPI."""
    from workbook.hardware.builds import build_for

    cards = _cards() if sys.platform == "linux" else []
    if not cards:
        return "" if sys.platform != "linux" or shutil.which("nvidia-smi") else CPU_INDEX
    newest = max(cards, key=lambda card: card.capability or (99, 0))
    build, why = build_for(newest, again="`rm -r .venv && make setup`")
    if build is None:
        _say(f"labkit: {why} This sets up the build for the CPU.")
        return CPU_INDEX
    if build.index:
        _say(f"labkit: {newest.name}: {why}. This takes {build.name}, as `make setup TORCH_INDEX={build.index}` does.")
    return build.index


def _cards() -> "list[Card]":
    """Return the NVIDIA GPUs that the driver lists; without an answer of `nvidia-smi`, those of the PCI bus."""
    from workbook.hardware.builds import Card, capability_of, cards_on_bus, generation_of

    if rows := _asked("name,driver_version,compute_cap"):
        return [Card(name, capability_of(capability), driver) for name, driver, capability in rows]
    if rows := _asked("name,driver_version,pci.device_id"):  # drivers before 510 do not tell the capability
        return [Card(name, generation_of(int(number, 16) >> 16)[1], driver) for name, driver, number in rows]
    driver = re.search(r"\s(\d{3}\.\d[\d.]*)\s", DRIVER.read_text(encoding="utf-8")) if DRIVER.exists() else None
    if driver is None:
        return cards_on_bus()
    return [card._replace(driver=driver[1], listed=True) for card in cards_on_bus()] or [Card("GPU", None, driver[1])]


def _asked(fields: str) -> "list[list[str]]":
    """Return what `nvidia-smi` answers, by card; nothing if it is not there or knows not all of the fields."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in asked.stdout.splitlines() if line.strip()]


def _constraints(folder: Path, index: str) -> Path:
    """Return the file of pins. For CUDA 12.6, it is one in `folder`, with the pins of constraints-cu126.txt."""
    file = ROOT / "constraints.txt"
    if "/cu126" not in index:
        return file
    own = _lines(ROOT / "constraints-cu126.txt")
    names = tuple(line.split("==")[0] + "==" for line in own)
    others = [line for line in _lines(file) if not line.startswith(names)]
    folder.joinpath("constraints.txt").write_text("\n".join([*others, *own]) + "\n", encoding="utf-8")
    return folder / "constraints.txt"


def _install_torch(pip: "list[str]", index: str) -> bool:
    pins = _pins(Path(pip[-1]), "torch", "torchvision")
    if index and (index != CPU_INDEX or os.environ.get("TORCH_INDEX")):
        return subprocess.call([*pip, *pins, "--index-url", index, "--extra-index-url", "https://pypi.org/simple"]) == 0
    if not index:
        return subprocess.call([*pip, *pins]) == 0
    # A local wheel (PIP_FIND_LINKS) may be a CPU build, so the CPU build is tried without the index too.
    reachable = ["--extra-index-url", CPU_INDEX] if _answers(CPU_INDEX + "/torch/") else []
    cpu = [pin + "+cpu" for pin in (pins if reachable else pins[:1])]
    if subprocess.call([*pip, *reachable, *cpu], stderr=subprocess.DEVNULL) == 0:
        return subprocess.call([*pip, *pins]) == 0
    _say("      no CPU build of torch is available here: installing the default build, which is large")
    return subprocess.call([*pip, *pins]) == 0


def _pins(file: Path, *names: str, extra: str = "") -> "list[str]":
    """Return the packages as `name[extra]==version`, from a file of pins."""
    pins = [line for name in names for line in _lines(file) if line.startswith(name + "==")]
    return [pin.replace("==", extra + "==") for pin in pins]


def _lines(file: Path) -> "list[str]":
    """Return a file's pins, without comments and options."""
    lines = [line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "==" in line]


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
    sys.path.insert(0, str(ROOT))  # for workbook.hardware.builds
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # `subprocess.call` has ended pip
        _refuse("interrupted. The same command continues.")
        sys.exit(130)
