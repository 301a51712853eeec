"""The devices of this machine: what NVIDIA's driver lists, what CUDA_VISIBLE_DEVICES leaves, and a helper's choice.

Of a device, only its place in the driver's list is sure. A property that cannot be read is None, and a device of which
nothing can be read keeps its place, so that the others have the numbers that the driver gives them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import ConfigDict, Field

from labkit.errors import UserError, unknown

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
SILENT = "driver does not answer"
UNREADABLE = "unreadable GPU"
VARIABLE = "CUDA_VISIBLE_DEVICES"
PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA device as its driver describes it. Memory in bytes, power in watts, clocks in hertz."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # of a file that may come from somebody else

    name: str
    uuid_hash: str
    memory_bytes: Annotated[int, Field(ge=0, lt=2**63)] | None
    compute_capability: str | None
    power_limit_w: float | None = None
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    mig: bool = False  # whether the card is split into slices (MIG), each of which looks like a small card


# Raw UUIDs by their hash, which alone may leave this process: CUDA_VISIBLE_DEVICES may hold beginnings of UUIDs.
_uuids: dict[str, str] = {}


def nvidia() -> tuple[tuple[Gpu, ...], str | None, tuple[str, ...]]:
    """Return the NVIDIA devices, the driver's version, and notes on devices that could not be read."""

    def silent(reason: object) -> tuple[tuple[Gpu, ...], None, tuple[str, ...]]:
        return (), None, (f"an NVIDIA GPU is here, but its {SILENT}: {reason}.",) if nvidia_hardware() else ()

    try:
        import pynvml
    except ImportError:
        return silent("nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return silent(error)
    try:
        read = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        if not read and _on_bus():
            return silent("it lists no GPU")
        if read and all(note for _, note in read):
            return silent(read[0][1].removesuffix("."))
        driver = _optional(lambda: _text(pynvml.nvmlSystemGetDriverVersion()))
        return tuple(gpu for gpu, _ in read), driver, tuple(note for _, note in read if note)
    except pynvml.NVMLError as error:  # the driver does not even count
        return silent(error)
    finally:
        _optional(pynvml.nvmlShutdown)


def _gpu(nvml: Any, index: int) -> tuple[Gpu, str]:
    """Return a device and an empty text, or a device without properties and why they cannot be read."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    except (nvml.NVMLError, UnicodeDecodeError) as error:
        return Gpu(UNREADABLE, "", None, None), f"GPU {index} cannot be read and is left out: {error}."
    _uuids[uuid_hash(uuid)] = uuid
    capability = _optional(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    gpu = Gpu(
        name=_optional(lambda: _text(nvml.nvmlDeviceGetName(handle))) or "NVIDIA GPU without a readable name",
        uuid_hash=uuid_hash(uuid),
        memory_bytes=_optional(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        power_limit_w=_optional(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        max_sm_clock_hz=_optional(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6),
        max_memory_clock_hz=_optional(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6),
        mig=bool(_optional(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])),
    )
    return gpu, ""


def _optional(read: Callable[[], T]) -> T | None:
    """Return a reading, or None if this device, driver or binding does not give it, whatever error it raises."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - bindings raise errors of many types
        return None


def _text(value: str | bytes) -> str:
    """Return a driver's text. A byte that is no text becomes a question mark, so that a name stays a name."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def uuid_hash(text: str) -> str:
    """Return the hash that stands for a UUID, which names one device in the world."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def nvidia_hardware(pci: Path = PCI, nodes: Path = Path("/dev")) -> bool:
    """Return whether the machine has an NVIDIA GPU, even if its driver or nvidia-ml-py cannot see it."""
    if Path("/proc/driver/nvidia/version").exists() or any(nodes.glob("nvidia[0-9]*")):  # a container may hide the bus
        return True
    return _on_bus(pci)


def _on_bus(pci: Path = PCI) -> bool:
    return any(pci_device(device) == ("0x10de", "0x03") for device in pci.glob("*"))


def pci_device(device: Path) -> tuple[str, str]:
    """Return vendor and class of a PCI device; empty texts if they cannot be read."""
    try:
        return (device / "vendor").read_text().strip(), (device / "class").read_text().strip()[:4]
    except OSError:
        return "", ""


def visible(gpus: Sequence[Gpu]) -> list[int]:
    """Return the driver's numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, in the order of CUDA's own numbers.

    The variable is read as CUDA reads it. Its entries are numbers, or UUIDs that may be cut short. The first entry that
    names no GPU ends the list, and an entry that comes twice makes it empty. Without the variable, all GPUs are
    visible. On a shared machine the rest may belong to other users.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return [index for index, gpu in enumerate(gpus) if gpu.name != UNREADABLE]
    chosen: list[int] = []
    by_uuid = text.startswith("GPU-")
    for entry in map(str.strip, text.split(",")):
        index = _index_of(entry, gpus) if entry.startswith("GPU-") == by_uuid else None
        if index is None:
            break
        if index in chosen:
            return []
        chosen.append(index)
    return chosen


def _index_of(entry: str, gpus: Sequence[Gpu]) -> int | None:
    if entry.startswith("GPU-"):
        fitting = [
            index
            for index, gpu in enumerate(gpus)
            if gpu.uuid_hash == uuid_hash(entry) or _uuids.get(gpu.uuid_hash, "").startswith(entry)
        ]
        return fitting[0] if len(fitting) == 1 else None
    digits = re.match(r"\d+", entry)  # as C's strtoul: what follows the digits does not count
    index = int(digits[0]) if digits else len(gpus)
    return index if index < len(gpus) and gpus[index].name != UNREADABLE else None


def why_hidden(gpus: Sequence[Gpu]) -> str:
    """Return why CUDA_VISIBLE_DEVICES leaves no whole GPU, and what to do about slices; empty if it leaves one."""
    text = os.environ.get(VARIABLE, "")
    slices = [gpus[index].name for index in visible(gpus) if gpus[index].mig]
    if text.startswith("MIG-") or slices:
        which = f"{VARIABLE}={text} names a slice" if text.startswith("MIG-") else f"{slices[0]} is split into slices"
        return (
            f"{which} of a card (MIG), and a slice has neither the card's speed nor sensors of its own. Use a whole "
            "card: ask for one, or end the split as root with `nvidia-smi -mig 0`"
        )
    if not gpus or visible(gpus):
        return ""
    return f"{VARIABLE}={text} leaves no GPU of the {len(gpus)} here"


def visible_gpus() -> tuple[list[int], str]:
    """Return NVML's numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, and why there is none or an empty text."""
    gpus, _, notes = nvidia()
    why = why_hidden(gpus)
    if not why and (here := visible(gpus)):
        return here, ""
    return [], why or (notes[0] if notes else "the driver shows no GPU")


def choose_device(device: torch.device | str | None) -> torch.device:
    """Return the device of that name; for None, CUDA if PyTorch sees a device, else the CPU.

    Raise UserError for another name, and for a CUDA device that is not here or that PyTorch has no code for.
    """
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    try:
        chosen = torch.device(device if device is not None else "cuda" if devices else "cpu")
    except (RuntimeError, TypeError):
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise unknown("device", str(device), ("cpu", "cuda", "cuda:0"))
    if chosen.type == "cuda" and (chosen.index or 0) >= devices:
        raise UserError(
            f"device {str(device)!r} was asked for, and PyTorch sees {devices} CUDA devices here; use device='cpu', or "
            "leave device out."
        )
    if chosen.type == "cuda":
        try:
            torch.ones(1, device=chosen).item()
        except RuntimeError as error:  # no code for the card, or a driver that is too old
            why = (str(error).strip() or "no message").splitlines()[0]
            name = torch.cuda.get_device_name(chosen)
            raise UserError(
                f"torch {torch.__version__} does not compute on {name}: {why}. Install another build."
            ) from error
    return chosen
