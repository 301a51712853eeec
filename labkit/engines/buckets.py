"""Gradients of several ranks are averaged in buckets, each sent as soon as it is full; also inside a captured step.

    a weight's gradient is made      autograd hands it over, or the operation that makes it says so (`side_stream`)
    its bucket is full               one all-reduce, on a stream of its own, while the backward pass goes on
    all of the backward is queued    the update takes the buckets one after the other, as they come back

A bucket is one flat tensor, and the gradients are views of it, laid out as their weights. The buckets follow the model
from its end, where the backward pass begins. What has one dimension (biases, norms) is small and goes last: a compiled
backward pass hands it over at its end only. Every rank sends its buckets in the same order, whichever is full first.

DistributedDataParallel does the same for the plain loop. It hears of gradients from autograd alone, which gets those of
a compiled network when its whole backward pass is queued, and it copies each into its bucket.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.errors import GateError
from labkit.ranks import Team

BUCKET_BYTES = 2**23  # unmeasured: `benchmarks/data_parallel.py --bucket-mb` tries others
ALIGNED = 128  # elements: where a gradient in a bucket begins, so that kernels can load whole vectors


def parts_of(weights: Sequence[torch.Tensor], bucket_bytes: int, wire: torch.dtype | None = None) -> list[list[int]]:
    """Which weights go together, by their index, in the order in which they are sent.

    From the last on, a bucket is closed when it holds `bucket_bytes` or more; what has one dimension comes at the end,
    all together. A bucket has one type: `wire`, or the weights' own.
    """
    parts: list[list[int]] = []
    order = [index for index in reversed(range(len(weights))) if weights[index].dim() > 1]
    for kind in _types(weights[index] for index in order):
        filled = bucket_bytes
        for index in order:
            weight = weights[index]
            if weight.dtype != kind:
                continue
            if filled >= bucket_bytes:
                parts.append([])
                filled = 0
            parts[-1].append(index)
            filled += weight.numel() * (wire or weight.dtype).itemsize
    small = [index for index in reversed(range(len(weights))) if weights[index].dim() <= 1]
    for kind in _types(weights[index] for index in small):
        parts.append([index for index in small if weights[index].dtype == kind])
    return parts


def _types(weights: Iterable[torch.Tensor]) -> list[torch.dtype]:
    return list(dict.fromkeys(weight.dtype for weight in weights))


class Buckets:
    """The exchange of one model's gradients: `begin()`, the backward pass, then `arriving()` or `wait()`.

    `wire` is the type in which they are sent and added up, by default their own. All ranks have to have the same
    weights to begin with, as those have that draw them from one seed.
    """

    def __init__(
        self, model: nn.Module, team: Team, *, wire: torch.dtype | None = None, bucket_bytes: int | None = None
    ) -> None:
        named = list(model.named_parameters())
        weights = [weight for _, weight in named]
        self.parts = parts_of(weights, BUCKET_BYTES if bucket_bytes is None else bucket_bytes, wire)
        self._names = {weight: name for name, weight in named}
        self._buckets = [_Bucket([weights[index] for index in part], wire) for part in self.parts]
        self._home = {weight: bucket for bucket in self._buckets for weight in bucket.views}
        self._at = {weight.data_ptr(): weight for weight in weights}
        self._way: _ByNccl | _ByGloo = _ByNccl(team) if weights[0].is_cuda else _ByGloo(team)
        self._missing: set[nn.Parameter] = set()
        self._told: set[nn.Parameter] = set()  # whose makers said so, before autograd did
        self._streams: list[Any] = []  # on which those are made
        self._sent = 0
        heard = weakref.WeakMethod(self._accumulated)  # else each would keep the other, and both their memory

        def tell(weight: nn.Parameter) -> None:
            if (accumulated := heard()) is not None:
                accumulated(weight)

        for weight in weights:
            weight.register_post_accumulate_grad_hook(tell)

    @property
    def sizes_bytes(self) -> list[int]:
        """What each bucket sends, in the order of sending."""
        return [bucket.flat.nbytes for bucket in self._buckets]

    def begin(self) -> None:
        """Before a backward pass: nothing has come yet."""
        self._missing = set(self._home)
        self._told.clear()
        self._streams.clear()
        self._sent = 0
        self._way.forget()
        for bucket in self._buckets:
            bucket.missing = len(bucket.views)

    def place_of(self, weight: torch.Tensor) -> torch.Tensor | None:
        """Where to write the gradient of this weight, so that nobody has to copy it; None where it is rounded first."""
        own = self._at.get(weight.data_ptr())
        if own is None:
            return None
        view = self._home[own].views[own]
        return view.detach() if view.dtype == weight.dtype else None

    def made(self, weight: torch.Tensor, stream: Any) -> None:
        """The gradient of this weight is being written to its place, on that stream."""
        own = self._at[weight.data_ptr()]
        self._told.add(own)
        if stream not in self._streams:
            self._streams.append(stream)
        self._arrived(own)

    def _accumulated(self, weight: nn.Parameter) -> None:
        """Autograd has the gradient of a weight."""
        if weight not in self._told:
            self._arrived(weight)
        elif not _same_place(weight.grad, self._home[weight].views[weight]):
            raise RuntimeError(f"autograd copied the gradient of {self._names[weight]} while it was being sent")

    def _arrived(self, weight: nn.Parameter) -> None:
        if weight not in self._missing:
            raise RuntimeError(f"the gradient of {self._names[weight]} came twice, or without begin()")
        self._missing.remove(weight)
        self._home[weight].missing -= 1
        while self._sent < len(self._buckets) and self._buckets[self._sent].missing == 0:
            bucket = self._buckets[self._sent]
            bucket.gather()
            self._way.send(bucket.flat, self._streams)
            self._sent += 1

    def arriving(self) -> Iterator[int]:
        """After the backward pass: the number of each bucket, once the gradients in it are the team's mean.

        On a GPU that is so for what is queued next on the current stream. GateError for weights without a gradient.
        """
        if self._missing:
            names = sorted(self._names[weight] for weight in self._missing)
            raise GateError(f"{len(names)} weights got no gradient that could be averaged, {names[0]} first")
        for number, bucket in enumerate(self._buckets):
            self._way.wait(number)
            bucket.scatter()
            yield number

    def wait(self) -> None:
        """Until all gradients are the team's mean."""
        for _ in self.arriving():
            pass


class _Bucket:
    """A flat tensor, and the gradients of some weights as views of it."""

    def __init__(self, weights: Sequence[nn.Parameter], wire: torch.dtype | None) -> None:
        begins, end = [], 0
        for weight in weights:
            begins.append(end)
            end += -(-weight.numel() // ALIGNED) * ALIGNED
        self.flat = torch.zeros(end, dtype=wire or weights[0].dtype, device=weights[0].device)
        self.views = {
            weight: self.flat.as_strided(weight.shape, weight.stride(), begin)
            for weight, begin in zip(weights, begins, strict=True)
        }
        self.missing = len(weights)

    def gather(self) -> None:
        """Bring here what was made elsewhere. Of the same type, the gradients are here from now on."""
        elsewhere = [
            (weight, weight.grad, view)
            for weight, view in self.views.items()
            if weight.grad is not None and not _same_place(weight.grad, view)
        ]
        if not elsewhere:
            return
        torch._foreach_copy_([view for *_, view in elsewhere], [gradient for _, gradient, _ in elsewhere])
        for weight, gradient, view in elsewhere:
            if gradient.dtype == view.dtype:
                weight.grad = view.detach()

    def scatter(self) -> None:
        """Give back what was sent in another type than the gradients have."""
        rounded = [(weight.grad, view) for weight, view in self.views.items() if view.dtype != weight.dtype]
        if rounded:
            torch._foreach_copy_([gradient for gradient, _ in rounded], [view for _, view in rounded])


def _same_place(gradient: torch.Tensor | None, view: torch.Tensor) -> bool:
    return gradient is not None and gradient.data_ptr() == view.data_ptr() and gradient.dtype == view.dtype


class _ByGloo:
    """Means by Gloo's own threads. Divided before they are added up, as NCCL does it: FP16 may not hold the sum."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works: list[Any] = []

    def send(self, flat: torch.Tensor, _after: Sequence[Any]) -> None:
        flat /= self._team.size
        self._works.append(dist.all_reduce(flat, group=self._team.work, async_op=True))

    def wait(self, number: int) -> None:
        self._works[number].wait()

    def forget(self) -> None:
        self._works.clear()


class _ByNccl:
    """Means by NCCL on a stream of their own, which the current one waits for by events: all of it can be captured.

    NCCL has to have made its connections before: the steps before a capture do. PyTorch's watchdog asks nothing of what
    is captured (https://github.com/pytorch/pytorch/pull/103503), and what it still asks of the steps before disturbs no
    capture in the mode `thread_local` (https://github.com/pytorch/pytorch/pull/148594). The stream comes before the
    step's own, since a kernel of the exchange should not wait for room behind one that computes. NCCL multiplies by 1/n
    before it adds: for numbers of devices that are no power of two BF16 rounds that once more.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._stream = torch.cuda.Stream(priority=-3)  # type: ignore[no-untyped-call, unused-ignore]
        self._done: list[Any] = []

    def send(self, flat: torch.Tensor, after: Sequence[Any]) -> None:
        for stream in (torch.cuda.current_stream(), *after):
            self._stream.wait_stream(stream)
        with torch.cuda.stream(self._stream):
            dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=self._team.work)
            self._done.append(self._stream.record_event())

    def wait(self, number: int) -> None:
        torch.cuda.current_stream().wait_event(self._done[number])

    def forget(self) -> None:
        self._done.clear()
