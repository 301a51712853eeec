"""Compiler, allocator and collector state before each trial, and its peak memory. Same for all trials of a pass."""

from __future__ import annotations

import gc
from typing import Any

import psutil


def reset_compiler() -> None:
    """Discard compiled graphs, compile for static shapes, and make Dynamo raise an error at its recompile limit.

    Otherwise the second batch size in a process would compile with dynamic shapes. From about the tenth trial on,
    Dynamo would silently fall back to eager.
    """
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.config.assume_static_by_default = True
    dynamo.config.automatic_dynamic_shapes = False
    dynamo.config.fail_on_recompile_limit_hit = True
    dynamo.config.recompile_limit = 16  # regions of a network share code: a ResNet has blocks of eight shapes


def quiet_collector() -> None:
    """Collect the garbage of building a trial, so that Python's collector has little to do during a block.

    A full collection takes some 70 ms with a framework imported, and ten times that with a compiler. Collections after
    `begin_anew` skip the objects loaded before the trial, because `begin_anew` freezes them.
    """
    gc.collect()


def free_memory(device: str) -> None:
    """Collect garbage and, on CUDA, return unused cached memory to the driver."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def begin_anew(device: str) -> None:
    """Release everything that the previous trial left, cuBLAS workspaces included. Call it before a trial is built.

    Objects alive now stay to the end, so they are frozen and later collections skip them. A later call would freeze the
    trial's own objects too, and those in a cycle would never be freed.

    PyTorch keeps a workspace (32 MiB on Hopper) for each stream that ever ran a matrix product; `empty_cache` does not
    release it. Each captured trial has its own streams, so a trial's peak would grow with the captured trials before
    it. A CUDA graph holds the address of its workspace, so no CUDA graph may be alive. PyTorch has no public function
    for this yet (https://github.com/pytorch/pytorch/issues/184084).
    """
    global _left_bytes
    gc.collect()
    if device == "cuda":
        import torch

        for owner, name in ((torch.cuda, "clear_cublas_workspaces"), (torch._C, "_cuda_clearCublasWorkspaces")):
            if free := getattr(owner, name, None):
                free()
                break
    free_memory(device)
    gc.freeze()
    if device == "cuda":
        _left_bytes = torch.cuda.memory_allocated()


# Bytes on the device that earlier trials of this process had left when this trial began; its peak includes them.
_left_bytes: int | None = None


def reset_peak_memory(device: str) -> None:
    """Release garbage and cached memory, and reset the peak counters on CUDA. Do nothing on a CPU.

    The correctness check leaves networks in reference cycles, which a peak would include.
    """
    if device == "cuda":
        import torch

        free_memory(device)
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> dict[str, Any]:
    """Return `memory_bytes` of a trial and how it was read.

    CUDA: the allocator's peak since `reset_peak_memory`, allocated to tensors and reserved from the driver. The peak
    includes `memory_left_bytes` of earlier trials: 0 after `begin_anew`, unless something keeps memory. CPU: the
    process's present resident set, framework included, because no CPU allocator keeps a peak.
    """
    if device == "cuda":
        import torch

        return {
            "memory_bytes": torch.cuda.max_memory_allocated(),
            "memory_reserved_bytes": torch.cuda.max_memory_reserved(),
            "memory_left_bytes": _left_bytes,
            "memory_method": "peak of PyTorch's CUDA allocator after the first step (of several devices, the first's)",
        }
    return {
        "memory_bytes": psutil.Process().memory_info().rss,
        "memory_method": "resident set of the process at the end",
    }
