"""A whole prediction as one CUDA graph: one launch a batch instead of hundreds, and one for its images."""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.data.pool import Pool

WARM_UPS = 2  # on the capturing stream: lazy initialisation, cuDNN's choice of algorithms, compilation of kernels


class CapturedPrediction:
    """Copies the pool's next batch to where the graph reads it, and replays. `body(batch)` gives the logits.

    `memory_bytes` is the allocator's peak while the prediction was recorded: a replay allocates nothing.
    """

    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor], pool: Pool) -> None:
        self._body, self._pool = body, pool
        self._batch = pool.empty()
        self._logits = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.memory_bytes = 0

    @torch.inference_mode()
    def capture(self) -> None:
        """Record the prediction."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._batch.copy_(next(self._pool), non_blocking=True)
                self._body(self._batch)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what trying algorithms took
        torch.cuda.reset_peak_memory_stats()
        with torch.cuda.graph(graph, stream=stream):
            self._logits = self._body(self._batch)
        self.memory_bytes = torch.cuda.max_memory_allocated()
        self._graph = graph
        torch.cuda.synchronize()

    def __call__(self) -> torch.Tensor:
        """Queue one prediction of the pool's next batch; the logits are overwritten by the next."""
        return self.of(next(self._pool))

    @torch.inference_mode()
    def of(self, batch: torch.Tensor) -> torch.Tensor:
        """The same of a batch like the pool's."""
        assert self._graph is not None, "call capture() first"
        self._batch.copy_(batch, non_blocking=True)
        self._graph.replay()
        return self._logits
