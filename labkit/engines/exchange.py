"""How the gradients of several ranks become their mean: by DistributedDataParallel, by our own buckets, by hand.

DistributedDataParallel sends a bucket of gradients as soon as it is full, while the backward pass goes on. So do ours
(`buckets`), in steps that are compiled or captured. By hand, each gradient is sent after the whole backward pass: slow,
but nothing can be out of step, so the others are held against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from labkit.errors import GateError
from labkit.ranks import Team
from labkit.trial import Trial

Exchange = Literal["overlapped", "by hand"]


def in_buckets(trial: Trial) -> bool:
    """Whether a trial's gradients go in our own buckets: in those of DistributedDataParallel goes the plain loop."""
    return trial.engine != "eager"


def overlapped(model: nn.Module, team: Team, gradient_precision: str = "fp32") -> nn.Module:
    """The model, whose gradients every backward pass averages over the team. The weights of rank 0 go to all.

    Each rank keeps running statistics of its own, as is usual; the graph must not change from step to step. Gradients
    are sent and added up in `gradient_precision`.
    """
    parallel = nn.parallel.DistributedDataParallel(
        model, process_group=team.work, broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=True
    )
    if gradient_precision != "fp32":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        parallel.register_comm_hook(team.work, hooks[gradient_precision])
    return parallel


def average_gradients(model: nn.Module, team: Team) -> None:
    """Replace each gradient by its mean over the team."""
    for weight in model.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad, group=team.work)
            weight.grad /= team.size


def bytes_to_send(model: nn.Module, team: Team, *, gradient_precision: str = "fp32", averaged: bool = True) -> int:
    """Bytes that a rank must send in a step, so that all have what they need of each other's gradients.

    Averaged in a ring of n ranks: 2 (n - 1) / n of its gradients (Patarasuk and Yuan 2009). Else each rank needs the
    gradients of every other one as they are.
    """
    widest = 4 if gradient_precision == "fp32" else 2
    own: int = sum(weight.numel() * min(weight.element_size(), widest) for weight in model.parameters())
    others = team.size - 1
    return 2 * own * others // team.size if averaged else own * others


def check_same_everywhere(values: Sequence[torch.Tensor], team: Team) -> None:
    """GateError where the ranks' weights differ: each would train a network of its own."""
    sums = team.gather([float(value.double().sum()) for value in values])
    for rank, of_rank in enumerate(sums):
        if of_rank != sums[0]:
            raise GateError(f"after the same steps rank {rank} has other weights than rank 0")
