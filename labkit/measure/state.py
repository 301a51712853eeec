"""The state a trial starts from and leaves: compiler caches, allocator, peak memory. Same for every trial of a pass."""

from __future__ import annotations

import gc
from typing import Any

import psutil


def reset_compiler() -> None:
    """Forget compiled graphs, and compile for static shapes with an error, not a fallback, at a recompile limit.

    In one process the second batch size would otherwise compile with dynamic shapes, and from about the tenth trial on
    Dynamo would silently run eager.
    """
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.config.assume_static_by_default = True
    dynamo.config.automatic_dynamic_shapes = False
    dynamo.config.fail_on_recompile_limit_hit = True
    dynamo.config.recompile_limit = 16  # the regions of a network share code: ResNets have blocks of eight shapes


def quiet_collector() -> None:
    """Leave Python's garbage collector little to do in the middle of a block: collect what building the trial left.

    With a framework imported a full collection takes some 70 ms, with a compiler ten times that; but what was loaded
    before the trial has been set aside by `begin_anew`, and is not walked through again.
    """
    gc.collect()


def free_memory(device: str) -> None:
    """Give back the memory that nobody uses any more."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def begin_anew(device: str) -> None:
    """Before a trial is built: give back all that the last one left, cuBLAS's workspaces too.

    What is loaded by now stays to the end, so later collections leave it out. This is the only moment for that: while
    a trial is being built, its own objects would be set aside too, and those in a cycle would never be freed.

    PyTorch keeps a workspace (on Hopper 32 MiB) for each stream that ever multiplied, which `empty_cache` leaves.
    Captured trials have streams of their own, so a trial's peak would grow with those that ran before it. A captured
    graph holds the address of its own: none may be alive. There is no public function for it yet
    (https://github.com/pytorch/pytorch/issues/184084).
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


# What earlier trials of this process had left on the device when this one began: it is in the peak of this one.
_left_bytes: int | None = None


def reset_peak_memory(device: str) -> None:
    """Count the peak from now on."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> dict[str, Any]:
    """`memory_bytes` of a trial and how it was read.

    CUDA: the allocator's peak since `reset_peak_memory` (allocated to tensors, and reserved from the driver), and what
    earlier trials of the process had left, which is in it (0 after `begin_anew`, unless something keeps it). CPU: the
    process's resident set now, which holds the framework itself too (no allocator keeps a peak there).
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
