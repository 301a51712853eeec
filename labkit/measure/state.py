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
    """Keep Python's garbage collector from walking through all that is loaded in the middle of a block.

    With a framework imported one full collection takes some 70 ms. What lives now is set aside, so that those to come
    only see what steps create; `free_memory` takes it back.
    """
    gc.collect()
    gc.freeze()


def free_memory(device: str) -> None:
    """Give back what the last trial left behind."""
    gc.unfreeze()
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def reset_peak_memory(device: str) -> None:
    """Count the peak from now on."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> dict[str, Any]:
    """`memory_bytes` of a trial and how it was read.

    CUDA: the allocator's peak since `reset_peak_memory` (allocated to tensors, and reserved from the driver). CPU: the
    process's resident set now, which holds the framework itself too (no allocator keeps a peak there).
    """
    if device == "cuda":
        import torch

        return {
            "memory_bytes": torch.cuda.max_memory_allocated(),
            "memory_reserved_bytes": torch.cuda.max_memory_reserved(),
            "memory_method": "peak of PyTorch's CUDA allocator after the first step",
        }
    return {
        "memory_bytes": psutil.Process().memory_info().rss,
        "memory_method": "resident set of the process at the end",
    }
