"""A whole prediction as one CUDA graph: one launch a batch instead of hundreds, and one for its images."""

from __future__ import annotations

from collections.abc import Callable

import torch

from labkit.data.pool import Pool
from labkit.engines.captured import record


class CapturedPrediction:
    """Copies the pool's next batch to where the graph reads it, and replays. `body(batch)` gives the logits."""

    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor], pool: Pool) -> None:
        self._body, self._pool = body, pool
        self._batch, self._logits = pool.empty(), torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.memory_bytes = 0

    @torch.inference_mode()
    def capture(self) -> None:
        """Record the prediction. Batches before it are taken from the pool: rewind it."""
        # Trying algorithms has taken memory, which is given back before the peak is read.
        self._graph, self.memory_bytes = record(self._feed, self._predict, before=torch.cuda.empty_cache)

    def _feed(self) -> None:
        self._batch.copy_(next(self._pool), non_blocking=True)

    def _predict(self) -> None:
        self._logits = self._body(self._batch)

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
