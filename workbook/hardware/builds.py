"""The builds of PyTorch: which one runs on a card with its driver, and what to type where another is installed.

The set-up asks this module before it installs anything, so it needs the standard library only. Its facts:

- Builds for CUDA 13, PyPI's, have code from compute capability 7.5 on. Builds for CUDA 12.6 have code for 5.0 to 9.0,
  and PyTorch 2.14 is the last release that has them: https://github.com/pytorch/pytorch/issues/190355 and
  https://github.com/pytorch/pytorch/issues/190385. CUDA 12.8 had dropped Maxwell, Pascal and Volta before:
  https://github.com/pytorch/pytorch/issues/157517 and https://github.com/pytorch/pytorch/issues/172352.
- CUDA 12 needs driver 525 or later, CUDA 13 needs 580:
  https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
- Driver 580 is the last for Maxwell, Pascal and Volta, and 470 for Kepler:
  https://forums.developer.nvidia.com/t/unix-graphics-feature-deprecation-schedule/60588.
- The PCI numbers of NVIDIA's cards rise by generation: Maxwell's begin at 0x1340, Turing's at 0x1e00:
  https://pci-ids.ucw.cz/read/PC/10de.
"""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

TYPE_CHECKING = False  # the set-up runs this module before anything is installed
if TYPE_CHECKING:
    from labkit.devices import Gpu

Capability = tuple[int, int]


@dataclass(frozen=True)
class Build:
    """A build of PyTorch: its index (empty: PyPI), the compute capabilities that it has code for, the oldest driver."""

    name: str
    index: str
    lowest: Capability
    highest: Capability
    driver: int


class Card(NamedTuple):
    """A card. `capability` and `driver` are None and empty if unknown; `listed` is whether a driver lists the card."""

    name: str
    capability: Capability | None
    driver: str = ""
    listed: bool = True


class Torch(NamedTuple):
    """An installed PyTorch: its version, and the version of CUDA that it is built for; None for a build for the CPU."""

    version: str
    cuda: str | None


DEFAULT = Build("PyTorch for CUDA 13", "", (7, 5), (99, 0), 580)
LEGACY = Build("PyTorch for CUDA 12.6", "https://download.pytorch.org/whl/cu126", (5, 0), (9, 0), 525)
LAST_OF_LEGACY = 580  # the last driver for cards that DEFAULT has no code for
PCI = Path("/sys/bus/pci/devices")
MAXWELL, TURING = 0x1340, 0x1E00
ANSWERS_S = 300.0  # importing torch from a cold network disk can take minutes
ASK = "import json, torch; print(json.dumps([torch.cuda.is_available(), torch._C._cuda_getArchFlags()]))"


def capability_of(text: str | None) -> Capability | None:
    """Return a compute capability such as "6.1" as two numbers; None for None and for other text."""
    major, _, minor = (text or "").partition(".")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def card_of(gpu: Gpu, driver: str | None) -> Card:
    """Return the card that PyTorch needs a build for."""
    return Card(gpu.name, capability_of(gpu.compute_capability), driver or "")


def generation_of(number: int) -> tuple[str, Capability | None]:
    """Return a card's generation and its least compute capability, from its PCI number; None from Turing on."""
    if number < MAXWELL:
        return "Kepler or older", (3, 0)
    return ("Maxwell to Volta", LEGACY.lowest) if number < TURING else ("Turing or later", None)


def cards_on_bus(pci: Path = PCI) -> list[Card]:
    """Return the NVIDIA GPUs of the PCI bus, which a driver may list or not, with their generation's capability."""
    cards = []
    for device in sorted(pci.glob("*")):
        vendor, kind, number = (_read(device / name) for name in ("vendor", "class", "device"))
        if vendor == "0x10de" and kind.startswith("0x03"):
            generation, capability = generation_of(int(number, 16) if number else TURING)
            cards.append(Card(f"the NVIDIA card at PCI {device.name} ({generation})", capability, listed=False))
    return cards


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def build_for(card: Card, *, again: str = "") -> tuple[Build | None, str]:
    """Return the build of PyTorch that runs on a card, and why it is not PyPI's; or None, why none does and what to do.

    `again` is what to type once another driver is installed, by default `command()`.
    """
    again = again or f"`{command()}`"
    capability = card.capability or DEFAULT.lowest
    if capability < LEGACY.lowest:
        return None, (
            f"{card.name} is too old: no PyTorch that labkit supports has code for compute capabilities below "
            f"{_dotted(LEGACY.lowest)}. Type `make report HW=cpu` to measure the CPU; `make render HW=h200` and "
            "`make compare` show recorded results."
        )
    coded = [build for build in (DEFAULT, LEGACY) if build.lowest <= capability <= build.highest]
    wanted = (
        f"{LAST_OF_LEGACY}, the last for this card" if capability < DEFAULT.lowest else f"{DEFAULT.driver} or later"
    )
    if not card.listed:
        return None, f"No driver lists {card.name}: install driver {wanted}, then type {again}."
    fitting = [build for build in coded if _branch(card.driver) >= build.driver]
    if DEFAULT in fitting:
        return DEFAULT, ""
    if fitting:
        lowest = _dotted(DEFAULT.lowest)
        lacks = f"code only from compute capability {lowest} on" if DEFAULT not in coded else f"driver {DEFAULT.driver}"
        return fitting[0], f"{DEFAULT.name} {'has' if DEFAULT not in coded else 'needs'} {lacks}"
    return None, (
        f"Driver {card.driver} is too old for {card.name}: PyTorch needs driver {coded[-1].driver} or later. "
        f"Install driver {wanted}, then type {again}."
    )


def why_not(card: Card) -> str:
    """Return why this interpreter's PyTorch does not run on a card, and what to type; empty if it runs or is missing.

    A user's own build and CUDA's compatibility packages run where published builds do not. So this function asks
    PyTorch itself before it refuses a build.
    """
    torch = installed()
    if torch is None or _should_run(torch, card) or (torch.cuda and _runs(card)):
        return ""
    fits_later = torch.cuda and _should_run(torch, card._replace(driver=""))
    build, reason = build_for(card, again="the same command" if fits_later else "")
    if build is None:
        return reason
    has = f"torch {torch.version} is a build for the CPU"
    more = ""
    if torch.cuda:
        code, driver = _needs(torch)
        has = f"torch {torch.version} (CUDA {torch.cuda}) "
        if code.lowest <= (card.capability or code.lowest) <= code.highest:
            has += f"needs driver {driver} or later, and this is driver {card.driver or 'unknown'}"
            more = f" Or install driver {driver}." if build is LEGACY and (card.capability or (0, 0)) >= (7, 5) else ""
        else:
            has += f"has no code for compute capability {_dotted(card.capability or code.lowest)}"
    return f"{has}: type `{command(build)}` for {build.name}, which runs on {card.name}.{more}"


def command(build: Build = DEFAULT) -> str:
    """Return what to type so that this interpreter's environment gets a build of PyTorch."""
    if Path(sys.prefix).resolve() == (Path(__file__).resolve().parents[2] / ".venv").resolve():
        return "rm -r .venv && make setup" + (f" TORCH_INDEX={build.index}" if build.index else "")
    pip = f"{shlex.quote(sys.executable)} -m pip"
    index = f" --index-url {build.index}" if build.index else ""
    return f"{pip} uninstall -y torch torchvision && {pip} install torch torchvision{index}"


@cache
def installed() -> Torch | None:
    """Return this interpreter's PyTorch without importing it; None without one that says what it is built for."""
    try:
        spec = find_spec("torch")
        values = runpy.run_path(str(Path(spec.origin or "").with_name("version.py"))) if spec else {}
        return Torch(values["__version__"], values["cuda"])
    except (KeyError, OSError, ValueError):
        return None


def _branch(driver: str) -> int:
    """Return the first number of a driver's version; that of a recent one if it is unknown."""
    number = driver.partition(".")[0]
    return int(number) if number.isdecimal() else DEFAULT.driver


def _needs(torch: Torch) -> tuple[Build, int]:
    """Return the published build whose code a build for CUDA has, and the oldest driver that it runs on."""
    major, minor = capability_of(torch.cuda) or (13, 0)
    return DEFAULT if (major, minor) >= (12, 8) else LEGACY, DEFAULT.driver if major >= 13 else LEGACY.driver


def _should_run(torch: Torch, card: Card) -> bool:
    if torch.cuda is None:
        return False
    code, driver = _needs(torch)
    return _branch(card.driver) >= driver and (
        card.capability is None or code.lowest <= card.capability <= code.highest
    )


@cache
def _runs(card: Card) -> bool:
    """Ask PyTorch, in a process of its own, whether it sees a GPU and has code for the card's compute capability."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=ANSWERS_S
        )
        sees, flags = json.loads(asked.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return False
    return bool(sees) and (card.capability is None or has_code(flags.split(), card.capability))


def has_code(architectures: list[str], capability: Capability) -> bool:
    """Return whether one of `sm_86`, `compute_120` and so on runs on a device of a compute capability.

    Machine code (`sm`) runs on later minor versions of its major one, an intermediate form (`compute`) on all later.

    >>> has_code(["sm_60", "sm_70"], (6, 1)), has_code(["sm_75"], (8, 0)), has_code(["compute_75"], (8, 0))
    (True, False, True)
    """
    for kind, _, number in (name.partition("_") for name in architectures):
        major, minor = divmod(int(number.rstrip("af")), 10)
        if (major, minor) <= capability and (kind == "compute" or major == capability[0]):
            return True
    return False


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))
