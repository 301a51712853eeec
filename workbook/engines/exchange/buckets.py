"""Average the gradients of several ranks in buckets, each sent as soon as it is full; also in a captured step.

    a weight's gradient is made      autograd reports it, or the operation that makes it does (`side_stream`)
    its bucket is full               one all-reduce, on a separate stream, while the backward pass goes on
    the whole backward is queued     the update takes the buckets one after the other, as they come back

A bucket is one flat tensor. The gradients are views of it, laid out as their weights. The buckets follow the model from
its end, where the backward pass begins. Biases and norms are small and go last: a compiled backward pass reports them
only at its end. Every rank sends its buckets in the same order, whichever is full first.

Ranks share the update of a large bucket (Xu et al. 2020, arXiv:2004.13336):

    its bucket is full              each rank gets the mean of its share, an n-th
    no kernel reads these weights   each rank updates its share, and sends the new weights to all

These two exchanges are the halves of an all-reduce and send as many bytes. Each rank updates only an n-th of the
weights, while the backward pass goes on. The weights then lie in a flat tensor like their gradients. Masters and
momenta are up to date only in a rank's own share: `whole` puts the shares together.

DistributedDataParallel, which averages for the eager loop, hears of gradients from autograd alone: with a compiled
network, after its whole backward pass is queued. It copies each gradient into its bucket, and every rank updates all
weights.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workbook.errors import GateError
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


BUCKET_BYTES = 2**23  # 25 MB are as fast (benchmarks/README.md)
SHARED_BYTES = 2**25  # smallest layer whose update is shared: sharing takes one more exchange


def parts_of(weights: Sequence[torch.Tensor], bucket_bytes: int, wire: torch.dtype | None = None) -> list[list[int]]:
    """Return the indexes of the weights in each bucket, in the order in which the buckets are sent.

    The last weights come first. A bucket is closed when it holds `bucket_bytes` or more. Weights with one dimension
    come at the end, all together. A bucket has one type: `wire`, or the weights' own.
    """
    parts: list[list[int]] = []
    backwards = range(len(weights))[::-1]
    for is_small, most_bytes in ((False, bucket_bytes), (True, math.inf)):
        group = [index for index in backwards if (weights[index].dim() <= 1) == is_small]
        for kind in dict.fromkeys(weights[index].dtype for index in group):
            filled = math.inf
            for index in group:
                weight = weights[index]
                if weight.dtype != kind:
                    continue
                if filled >= most_bytes:
                    parts.append([])
                    filled = 0
                parts[-1].append(index)
                filled += weight.numel() * (wire or kind).itemsize
    return parts


class Buckets:
    """The exchange of a model's gradients: call `begin()`, run the backward pass, then call `arriving()` or `wait()`.

    Gradients are sent and added up in the type `wire`, by default their own. All ranks must begin with the same
    weights. `update(number)` queues the update of a bucket's weights, of the elements that `own` names. With `update`,
    ranks share the update of large buckets, whose gradients must be sent in their own type.
    """

    def __init__(
        self,
        model: nn.Module,
        team: Team,
        *,
        wire: torch.dtype | None = None,
        bucket_bytes: int | None = None,
        update: Callable[[int], None] | None = None,
        shared_bytes: int | None = None,
    ) -> None:
        self._names = {weight: name for name, weight in model.named_parameters()}
        self._team, self._weights, self._update = team, list(self._names), update
        self.parts = parts_of(self._weights, BUCKET_BYTES if bucket_bytes is None else bucket_bytes, wire)
        least = SHARED_BYTES if shared_bytes is None else shared_bytes
        self._buckets = []
        for part in self.parts:
            weights = [self._weights[index] for index in part]
            is_shared = update is not None and max(weight.nbytes for weight in weights) >= least
            self._buckets.append(Bucket(weights, wire, team if is_shared else None))
        self._home = {weight: bucket for bucket in self._buckets for weight in bucket.views}
        self._at = {weight.data_ptr(): weight for weight in self._weights}
        self._way: ByNccl | ByGloo = ByNccl(team) if self._weights[0].is_cuda else ByGloo(team)
        self._streams: list[Any] = []  # on which gradients are written that `made` reports
        self._next = 0
        reference = weakref.WeakMethod(self._accumulated)  # a strong one would make a cycle that keeps the memory

        def tell(weight: nn.Parameter) -> None:
            if (accumulated := reference()) is not None:
                accumulated(weight)

        for weight in self._weights:
            weight.register_post_accumulate_grad_hook(tell)

    @property
    def sizes_bytes(self) -> list[int]:
        """Bytes of each bucket, in the order of sending."""
        return [bucket.flat.nbytes for bucket in self._buckets]

    @property
    def shared_sizes_bytes(self) -> list[int]:
        """Bytes of each bucket whose update is shared, in the order of sending."""
        return [bucket.flat.nbytes for bucket in self._buckets if bucket.is_shared]

    @property
    def own(self) -> dict[int, tuple[int, int]]:
        """For each weight whose update is shared, by index: the elements (first, end) in memory order of this rank."""
        shared = ((index, self._home[self._weights[index]]) for part in self.parts for index in part)
        return {index: home.own_of(self._weights[index]) for index, home in shared if home.is_shared}

    @torch.no_grad()
    def whole(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return one whole tensor a weight, put together from the ranks' shares. All ranks must call this together."""
        together = list(values)
        for index, (first, last) in self.own.items():
            made = torch.zeros_like(values[index])
            in_memory(made)[first:last] = in_memory(values[index])[first:last]
            dist.all_reduce(made, group=self._team.work)  # one rank has the element, the others 0: no rounding
            together[index] = made
        return together

    def begin(self) -> None:
        """Mark every gradient as missing, before a backward pass."""
        self._streams.clear()
        self._next = 0
        self._way.forget()
        for bucket in self._buckets:
            bucket.missing, bucket.in_use, bucket.is_sent = set(bucket.views), set(bucket.views), False

    def place_of(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Return where to write this weight's gradient without a copy; None if it is rounded first or in no bucket."""
        own = self._at.get(weight.data_ptr())
        if own is None:
            return None
        view = self._home[own].views[own]
        return view.detach() if view.dtype == weight.dtype else None

    def made(self, weight: torch.Tensor, stream: Any) -> None:
        """Note that `stream` writes the gradient of this weight to its place."""
        if stream not in self._streams:
            self._streams.append(stream)
        self._arrived(self._at[weight.data_ptr()])

    def _accumulated(self, weight: nn.Parameter) -> None:
        """Note that autograd has a weight's gradient: all work of the backward pass that reads the weight is queued."""
        bucket = self._home[weight]
        if weight in bucket.missing or weight not in bucket.in_use:
            self._arrived(weight)
        elif not same_place(weight.grad, bucket.views[weight]):
            raise RuntimeError(f"autograd copied the gradient of {self._names[weight]} while it was being sent")
        bucket.in_use.remove(weight)
        self._go_on()

    def _arrived(self, weight: nn.Parameter) -> None:
        if weight not in self._home[weight].missing:
            raise RuntimeError(f"the gradient of {self._names[weight]} came twice, or without begin()")
        self._home[weight].missing.remove(weight)
        self._go_on()

    def _go_on(self) -> None:
        """Queue all exchanges whose turn it is. Every rank keeps one order: bucket by bucket, each to its end."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if bucket.missing:
                return
            if not bucket.is_sent:
                bucket.gather()
                self._way.send(bucket, self._streams)
                bucket.is_sent = True
            if bucket.is_shared:
                if bucket.in_use:
                    return
                assert self._update is not None
                self._way.send_weights(bucket, partial(self._update, self._next))
            self._next += 1

    def arriving(self) -> Iterator[int]:
        """Yield the number of each bucket, after the backward pass, once its gradients are the team's mean.

        On a GPU, this holds for work that is queued next on the current stream. Buckets whose update is shared have new
        weights by then and are not yielded. Raise GateError for weights without a gradient.
        """
        if names := sorted(self._names[weight] for bucket in self._buckets for weight in bucket.missing):
            raise GateError(f"{len(names)} weights got no gradient that could be averaged, {names[0]} first")
        if self._next < len(self._buckets):
            raise RuntimeError(f"autograd has not accumulated all gradients of bucket {self._next}, which was sent")
        for number, bucket in enumerate(self._buckets):
            self._way.wait(number)
            rounded = [(weight.grad, view) for weight, view in bucket.views.items() if view.dtype != weight.dtype]
            if rounded:
                torch._foreach_copy_([gradient for gradient, _ in rounded], [view for _, view in rounded])
            if not bucket.is_shared:
                yield number

    def wait(self) -> None:
        """Wait until all gradients are the team's mean."""
        for _ in self.arriving():
            pass
