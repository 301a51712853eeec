"""A bucket of gradients, and how ranks exchange it: on Gloo's threads, or by NCCL.

A bucket is one flat tensor for the gradients of some weights, and a second one for the weights if ranks share their
update. Then ranks exchange new weights too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workbook.ranks import Team

ALIGNED = 128  # elements: gradients in a bucket begin at multiples of it, so that kernels can load whole vectors


class Bucket:
    """A flat tensor, and the gradients of some weights as views of it.

    With a team, the weights are views of a second flat tensor, and both tensors are cut into a share for each rank.
    """

    def __init__(self, weights: Sequence[nn.Parameter], wire: torch.dtype | None, team: Team | None) -> None:
        self._begins, end = {}, 0
        for weight in weights:
            self._begins[weight] = end
            end += _rounded_up(weight.numel(), ALIGNED)
        ranks, rank = (team.size, team.rank) if team else (1, 0)
        self._share = _rounded_up(end, ALIGNED * ranks) // ranks
        self._first = rank * self._share
        self.flat = torch.zeros(self._share * ranks, dtype=wire or weights[0].dtype, device=weights[0].device)
        self.views = {weight: self._view(self.flat, weight) for weight in weights}
        self.weights = self._moved() if team else None
        # `missing`: weights whose gradient has not come. `in_use`: weights that the backward pass may still read.
        self.missing, self.in_use, self.is_sent = set[nn.Parameter](), set[nn.Parameter](), False

    def _view(self, flat: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return flat.as_strided(weight.shape, weight.stride(), self._begins[weight])

    @torch.no_grad()
    def _moved(self) -> torch.Tensor:
        """Move the weights into a new flat tensor, laid out like their gradients, and return that tensor."""
        flat = torch.zeros_like(self.flat)
        for weight in self.views:
            view = self._view(flat, weight)
            view.copy_(weight)
            weight.data = view
        return flat

    @property
    def is_shared(self) -> bool:
        """Whether each rank updates only its share of these weights."""
        return self.weights is not None

    def own_of(self, weight: torch.Tensor) -> tuple[int, int]:
        """Return the range (first, end) of the weight's elements, in memory order, that is in this rank's share."""
        first = self._first - self._begins[weight]
        return min(max(first, 0), weight.numel()), min(max(first + self._share, 0), weight.numel())

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of `flat`, the bucket's gradients or weights."""
        return flat[self._first : self._first + self._share]

    def gather(self) -> None:
        """Copy gradients that lie elsewhere into the bucket. Those of the bucket's type become views of it."""
        elsewhere = [
            (weight, weight.grad, view)
            for weight, view in self.views.items()
            if weight.grad is not None and not same_place(weight.grad, view)
        ]
        if not elsewhere:
            return
        torch._foreach_copy_([view for *_, view in elsewhere], [gradient for _, gradient, _ in elsewhere])
        for weight, gradient, view in elsewhere:
            if gradient.dtype == view.dtype:
                weight.grad = view.detach()

    def scatter(self) -> None:
        """Copy the bucket's values back to the gradients if they were sent in another type."""
        rounded = [(weight.grad, view) for weight, view in self.views.items() if view.dtype != weight.dtype]
        if rounded:
            torch._foreach_copy_([gradient for gradient, _ in rounded], [view for _, view in rounded])


def _rounded_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements, which lie without gaps, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


def same_place(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Return whether a gradient has the address and the type of `view`."""
    return gradient is not None and gradient.data_ptr() == view.data_ptr() and gradient.dtype == view.dtype


class ByGloo:
    """Averages on Gloo's threads. Gradients are divided before the sum, as in NCCL: FP16 may not hold the sum."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works: list[Any] = []

    def send(self, bucket: Bucket, _after: Sequence[Any]) -> None:
        """Begin to average all gradients of the bucket, even if its update is shared: Gloo has no reduce-scatter."""
        bucket.flat /= self._team.size
        self._works.append(dist.all_reduce(bucket.flat, group=self._team.work, async_op=True))

    def send_weights(self, bucket: Bucket, update: Callable[[], None]) -> None:
        """Update this rank's share of the bucket that was sent last, and begin to send its new weights to all ranks."""
        self._works[-1].wait()
        update()
        assert bucket.weights is not None
        own, shares = bucket.own(bucket.weights).clone(), list(bucket.weights.chunk(self._team.size))
        self._works[-1] = dist.all_gather(shares, own, group=self._team.work, async_op=True)

    def wait(self, number: int) -> None:
        """Wait for the exchange of bucket `number`."""
        self._works[number].wait()

    def forget(self) -> None:
        """Forget the exchanges of the last step, before a new step."""
        self._works.clear()


class ByNccl:
    """Averages by NCCL on a stream of its own. The current stream waits for it by events, so a graph can capture both.

    NCCL must make its connections before a capture: the steps before it do. PyTorch's watchdog does not query captured
    work (https://github.com/pytorch/pytorch/pull/103503). Its queries for earlier steps disturb no capture in the mode
    `thread_local` (https://github.com/pytorch/pytorch/pull/148594). The stream has a higher priority than the step's:
    an exchange kernel should not wait for room behind a compute kernel. NCCL multiplies by 1/n before it adds: BF16
    rounds once more if the number of devices is no power of two.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._stream = torch.cuda.Stream(priority=-3)  # type: ignore[no-untyped-call, unused-ignore]
        self._done: list[Any] = []

    def send(self, bucket: Bucket, after: Sequence[Any]) -> None:
        """Queue the mean of the gradients, or of this rank's share, behind the streams `after` and the current one."""
        for stream in (torch.cuda.current_stream(), *after):
            self._stream.wait_stream(stream)
        mean: dict[str, Any] = {"op": dist.ReduceOp.AVG, "group": self._team.work}
        with torch.cuda.stream(self._stream):
            if bucket.is_shared:
                dist.reduce_scatter_tensor(bucket.own(bucket.flat), bucket.flat, **mean)
            else:
                dist.all_reduce(bucket.flat, **mean)
            self._done.append(self._stream.record_event())

    def send_weights(self, bucket: Bucket, update: Callable[[], None]) -> None:
        """Queue the update of this rank's share of the bucket sent last, and the exchange of the new weights after it.

        The update waits for all work on the current stream so far, which may read the old weights.
        """
        assert bucket.weights is not None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            update()
            dist.all_gather_into_tensor(bucket.weights, bucket.own(bucket.weights), group=self._team.work)
            self._done[-1] = self._stream.record_event()

    def wait(self, number: int) -> None:
        """Make the current stream wait for the exchange of bucket `number`."""
        torch.cuda.current_stream().wait_event(self._done[number])

    def forget(self) -> None:
        """Forget the exchanges of the last step, before a new step."""
        self._done.clear()
