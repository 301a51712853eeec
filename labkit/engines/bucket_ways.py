"""How a bucket goes between ranks, and new weights where the update is shared out: by Gloo's threads, or by NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from labkit.engines.bucket import Bucket
from labkit.ranks import Team


class ByGloo:
    """Means by Gloo's own threads. Divided before they are added up, as NCCL does it: FP16 may not hold the sum."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._works: list[Any] = []

    def send(self, bucket: Bucket, _after: Sequence[Any]) -> None:
        """Begin to average the gradients; those of a share are averaged with all others, Gloo has no half of that."""
        bucket.flat /= self._team.size
        self._works.append(dist.all_reduce(bucket.flat, group=self._team.work, async_op=True))

    def send_weights(self, bucket: Bucket, update: Callable[[], None]) -> None:
        """Update the share of the bucket that was sent last, and begin to give everybody its new weights."""
        self._works[-1].wait()
        update()
        assert bucket.weights is not None
        own, shares = bucket.own(bucket.weights).clone(), list(bucket.weights.chunk(self._team.size))
        self._works[-1] = dist.all_gather(shares, own, group=self._team.work, async_op=True)

    def wait(self, number: int) -> None:
        """Until what was sent as that number is here."""
        self._works[number].wait()

    def forget(self) -> None:
        """Before a step: nothing is sent yet."""
        self._works.clear()


class ByNccl:
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

    def send(self, bucket: Bucket, after: Sequence[Any]) -> None:
        """Queue the mean of the gradients, or of the own share of them, behind these streams and the current one."""
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
        """Queue the update of the share of the bucket that was sent last, once what is queued now has read its weights.

        Then the new weights go to all.
        """
        assert bucket.weights is not None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            update()
            dist.all_gather_into_tensor(bucket.weights, bucket.own(bucket.weights), group=self._team.work)
            self._done[-1] = self._stream.record_event()

    def wait(self, number: int) -> None:
        """Let the current stream wait for what was sent as that number."""
        torch.cuda.current_stream().wait_event(self._done[number])

    def forget(self) -> None:
        """Before a step: nothing is sent yet."""
        self._done.clear()
