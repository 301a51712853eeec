"""Loads the frameworks of a process before its first trial, and asks them for versions that no package tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from labkit.devices import uuid_hash
from workbook.hardware.frameworks import KNOWN, installed, is_keras
from workbook.hardware.matching import SeenDevice


def said_of(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a process says first: `details` and `devices`, from the functions below."""
    return {"details": framework_details(trials), "devices": devices_of_pytorch(trials)}


def framework_details(trials: list[dict[str, Any]]) -> dict[str, str]:
    """Load the frameworks of these trials and return their CUDA, cuDNN and NCCL versions, which no package tells.

    Loading takes seconds. They count as part of the process's start and of no trial.
    """
    details: dict[str, Any] = {}
    for name in sorted({values.get("framework", "torch") for values in trials}):
        if is_keras(name):
            import keras  # noqa: F401 - loads its back end

            on_gpu = any(values.get("device", "cuda") == "cuda" for values in trials)
            details |= _OF_BACKEND[KNOWN[name].backend](on_gpu)
        elif name == "torch":
            details |= _torch()
    return {name: str(value) for name, value in details.items() if value is not None}


def devices_of_pytorch(trials: list[dict[str, Any]]) -> list[SeenDevice]:
    """Return the GPUs that PyTorch has in this process, in its order; empty without a trial of PyTorch on a GPU."""
    if not any(values.get("framework", "torch") == "torch" and values.get("device") == "cuda" for values in trials):
        return []
    import torch

    try:
        about = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    except RuntimeError:  # CUDA does not start; each trial will say why
        return []
    return [SeenDevice(device.name, uuid_hash(f"GPU-{device.uuid}"), device.total_memory) for device in about]


def _torch(_on_gpu: bool = True) -> dict[str, Any]:
    import torch

    details = {"torch_build": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    if torch.version.cuda and torch.distributed.is_nccl_available():
        details["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return details


def _tensorflow(_on_gpu: bool) -> dict[str, Any]:
    """Return the CUDA and cuDNN versions that TensorFlow was built with; None for both in a CPU build."""
    import tensorflow

    built = tensorflow.sysconfig.get_build_info()
    return {"cuda": built.get("cuda_version"), "cudnn": built.get("cudnn_version")}


def _jax(on_gpu: bool) -> dict[str, Any]:
    """Return CUDA's version from JAX's plug-in, and cuDNN's if it is a package; nothing for a process on the CPU."""
    if not on_gpu:
        return {}
    import jax

    match = re.search(r"cuda (\d+)", jax.devices()[0].client.platform_version)  # 13000 is 13.0
    if match is None:
        return {}
    major, minor = int(match[1]) // 1000, int(match[1]) % 1000 // 10
    cudnn = f"nvidia-cudnn-cu{major}"
    return {"cuda": f"{major}.{minor}", "cudnn": installed([cudnn]).get(cudnn)}


_OF_BACKEND: dict[str, Callable[[bool], dict[str, Any]]] = {"torch": _torch, "tensorflow": _tensorflow, "jax": _jax}
