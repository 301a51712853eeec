"""The devices of this machine: what NVIDIA's driver lists, what CUDA_VISIBLE_DEVICES leaves, and a helper's choice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from labkit.errors import UserError, unknown

if TYPE_CHECKING:
    import torch

SILENT = "driver does not answer"


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA device as its driver describes it. Memory in bytes, power in watts, clocks in hertz."""

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # of a file that may come from somebody else

    name: str
    uuid_hash: str
    memory_bytes: Annotated[int, Field(ge=0, lt=2**63)]
    compute_capability: str
    power_limit_w: float | None = None
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None


def nvidia() -> tuple[tuple[Gpu, ...], str | None, tuple[str, ...]]:
    """Return the NVIDIA devices, the driver's version, and notes on devices that could not be read."""

    def silent(reason: object) -> tuple[tuple[Gpu, ...], None, tuple[str, ...]]:
        return (), None, (f"an NVIDIA GPU is here, but its {SILENT}: {reason}.",)

    try:
        import pynvml
    except ImportError:
        return silent("nvidia-ml-py is not installed") if nvidia_hardware() else ((), None, ())
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        # A machine without a GPU usually has no driver library either, which needs no note.
        absent = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND and not nvidia_hardware()
        return ((), None, ()) if absent else silent(error)
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(_gpu(pynvml, handle) for handle in handles), _text(pynvml.nvmlSystemGetDriverVersion()), ()
    except pynvml.NVMLError as error:  # such as a GPU that fell off the bus
        return silent(error)
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    def optional(read: Callable[[], float]) -> float | None:
        try:
            return read()
        except nvml.NVMLError:  # a metric this device lacks stays missing
            return None

    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid_hash=uuid_hash(_text(nvml.nvmlDeviceGetUUID(handle))),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_capability=f"{major}.{minor}",
        power_limit_w=optional(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        max_sm_clock_hz=optional(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6),
        max_memory_clock_hz=optional(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def uuid_hash(text: str) -> str:
    """Return the hash that stands for a UUID, which names one device in the world."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def nvidia_hardware(pci: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Return whether the machine has an NVIDIA GPU, even if its driver or nvidia-ml-py cannot see it."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    return any(pci_device(device) == ("0x10de", "0x03") for device in (pci.glob("*") if pci.is_dir() else []))


def pci_device(device: Path) -> tuple[str, str]:
    """Return vendor and class of a PCI device; empty texts if they cannot be read."""
    try:
        return (device / "vendor").read_text().strip(), (device / "class").read_text().strip()[:4]
    except OSError:
        return "", ""


def visible(gpus: Sequence[Gpu]) -> list[int]:
    """Return the driver's numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves.

    On a shared machine the rest may belong to other users.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(range(len(gpus)))
    names = {name.strip() for name in chosen.split(",")}
    hashes = {uuid_hash(name) for name in names if name.startswith("GPU-")}
    return [index for index, gpu in enumerate(gpus) if str(index) in names or gpu.uuid_hash in hashes]


def visible_gpus() -> tuple[list[int], str]:
    """Return NVML's numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, and why there is none or an empty text."""
    gpus, _, notes = nvidia()
    if here := visible(gpus):
        return here, ""
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')} hides every GPU"
    return [], hidden if gpus else notes[0] if notes else "the driver shows no GPU"


def choose_device(device: torch.device | str | None) -> torch.device:
    """Return the device of that name; for None, CUDA if PyTorch sees a device, else the CPU.

    Raise UserError for another name, or for a CUDA device that is not here.
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
    return chosen
