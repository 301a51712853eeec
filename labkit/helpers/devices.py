"""Chooses the devices that a helper works on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from labkit.errors import UserError, unknown
from labkit.hardware.host import nvidia
from labkit.hardware.matching import visible

if TYPE_CHECKING:
    import torch


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


def visible_gpus() -> tuple[list[int], str]:
    """Return NVML's numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, and why there is none or an empty text."""
    gpus, _, notes = nvidia()
    if here := visible(gpus):
        return here, ""
    hidden = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')} hides every GPU"
    return [], hidden if gpus else notes[0] if notes else "the driver shows no GPU"
