"""Capture a whole prediction as one CUDA graph: one launch a batch instead of hundreds, and one to copy its images."""

from __future__ import annotations

from collections.abc import Callable

import torch

from workbook.engines.captured import record
from workbook.engines.pool import Pool


class CapturedPrediction:
    """A prediction that copies the pool's next batch to the graph's input and replays. `body(batch)` returns logits."""

    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor], pool: Pool) -> None:
        self._body, self._pool = body, pool
        self._batch, self._logits = pool.empty(), torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.memory_bytes = 0

    @torch.inference_mode()
    def capture(self) -> None:
        """Record the prediction. The warm-up takes batches from the pool: rewind it afterwards."""
        # The choice of algorithms took memory: give it back before the peak is measured.
        self._graph, self.memory_bytes = record(self._feed, self._predict, before=torch.cuda.empty_cache)

    def _feed(self) -> None:
        self._batch.copy_(next(self._pool), non_blocking=True)

    def _predict(self) -> None:
        self._logits = self._body(self._batch)

    def __call__(self) -> torch.Tensor:
        """Queue one prediction of the pool's next batch and return its logits; the next prediction overwrites them."""
        return self.of(next(self._pool))

    @torch.inference_mode()
    def of(self, batch: torch.Tensor) -> torch.Tensor:
        """Queue one prediction of `batch`, shaped like the pool's; return its logits, which the next one overwrites."""
        assert self._graph is not None, "call capture() first"
        self._batch.copy_(batch, non_blocking=True)
        self._graph.replay()
        return self._logits
