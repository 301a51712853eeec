"""Exchange of a bucket between ranks, and of new weights if ranks share the update: on Gloo's threads, or by NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from workbook.engines.exchange.bucket import Bucket
from workbook.ranks import Team


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
