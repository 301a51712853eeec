"""Average the gradients of several ranks: by DistributedDataParallel, in labkit's own buckets, or by hand.

DistributedDataParallel sends a bucket of gradients as soon as it is full, while the backward pass goes on. labkit's
buckets (`buckets`) do the same in compiled or captured steps. By hand, each gradient is sent after the whole backward
pass. This is slow, but no gradient can be out of step, so the other two are compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from workbook.errors import GateError
from workbook.ranks import Team
from workbook.trials.trial import Trial

Exchange = Literal["overlapped", "by hand"]


def in_buckets(trial: Trial) -> bool:
    """Return whether a trial's gradients go in labkit's buckets; the eager loop's go in DistributedDataParallel's."""
    return trial.engine != "eager"


def overlapped(model: nn.Module, team: Team, gradient_precision: str = "fp32") -> nn.Module:
    """Return the model, wrapped so that every backward pass averages its gradients over the team.

    Rank 0's weights go to all ranks. Each rank keeps its own running statistics, as is usual. The autograd graph must
    not change from step to step. Gradients are sent and added up in `gradient_precision`.
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
    """Return the bytes that a rank must send in a step so that each rank has the gradients that it needs.

    To average in a ring of n ranks, a rank sends 2 (n - 1) / n of its gradients (Patarasuk and Yuan 2009). Without
    averaging, each rank needs the unchanged gradients of every other rank.
    """
    widest = 4 if gradient_precision == "fp32" else 2
    own: int = sum(weight.numel() * min(weight.element_size(), widest) for weight in model.parameters())
    peers = team.size - 1
    return 2 * own * peers // team.size if averaged else own * peers


def check_same_everywhere(values: Sequence[torch.Tensor], team: Team) -> None:
    """Raise GateError if the ranks' weights differ by their sums: each rank would train a network of its own."""
    sums = team.gather([float(value.detach().double().sum()) for value in values])
    for rank, of_rank in enumerate(sums):
        if of_rank != sums[0]:
            raise GateError(f"after the same steps rank {rank} has other weights than rank 0")
