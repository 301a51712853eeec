"""A training step or a prediction, driven by Python or captured as one CUDA graph: one launch instead of hundreds.

A captured step's batch, gradients, weights and losses keep their addresses. Everything that the step uses must live as
long as the graph: the caller keeps the loader and the training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from labkit.data.loaders import Batch
from workbook.engines.device_loader import AnyLoader, StaticBatch
from workbook.engines.inference_images import Pool
from workbook.engines.state import reset_peak_memory
from workbook.engines.training import Training
from workbook.storage.readers.reader import FedLoader
from workbook.trace.profiler import section

WARM_UPS = 2  # on the capturing stream: lazy initialisation, cuDNN's choice of algorithms, compilation of kernels
Act = Callable[[], None]


def record(
    feed: Act, body: Act, *, before: Act, generators: Iterable[torch.Generator] = ()
) -> tuple[torch.cuda.CUDAGraph, int]:
    """Return a CUDA graph of `body`, and the allocator's peak in bytes while recording; a replay allocates nothing.

    `feed` runs before each run of `body`, and `before` runs before the recording. `generators` draw within the graph.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(priority=-1)
    for generator in generators:
        graph.register_generator_state(generator)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            feed()
            body()
        feed()
    torch.cuda.synchronize()
    before()
    reset_peak_memory("cuda")
    # Other threads (a streaming loader's) may use the device during the capture.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        body()
    memory_bytes = torch.cuda.max_memory_allocated()
    torch.cuda.synchronize()
    return graph, memory_bytes


class CapturedStep:
    """A step that loads a batch, trains on it and adds up its loss, in one launch after `capture()`."""

    def __init__(self, training: Training, batch: StaticBatch) -> None:
        self._training, self.batch, self.kind = training, batch, batch.kind
        self.memory_bytes = 0
        self._loss_sum = torch.zeros((), device=batch.images.device)
        self._steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def images(self) -> torch.Tensor:
        """Images of the last step; the next step overwrites them."""
        return self.batch.images

    @property
    def labels(self) -> torch.Tensor:
        """Labels of the last step; the next step overwrites them."""
        return self.batch.labels

    def peek(self) -> Batch:
        """Return the next batch without training on it; the batch after it overwrites it."""
        return self.batch.next_batch()

    def rewind(self) -> None:
        """Go back to the first batch, and forget the losses."""
        self.batch.rewind()
        self.take_losses()

    def take_losses(self) -> torch.Tensor:
        """Return the mean loss, on the device, of the steps since the last call; NaN if there were none."""
        mean = self._loss_sum / (self._steps or torch.nan)
        self._loss_sum.zero_()
        self._steps = 0
        return mean

    def _body(self) -> None:
        """Queue everything that a step does on the device."""
        self.batch.load()
        self._loss_sum += self._training.update(self.batch.images, self.batch.labels)

    def warm_up(self) -> None:
        """Run one step outside a graph: an engine that compiles does so now."""
        self.batch.feed()
        self._body()
        torch.cuda.synchronize()

    def capture(self) -> None:
        """Record the step. Its warm-up steps change weights: restart the training and rewind the batch afterwards."""
        forget, generators = self._training.optimizer.zero_grad, self.batch.generators()  # the graph makes new ones
        self._graph, self.memory_bytes = record(self.batch.feed, self._body, before=forget, generators=generators)
        self._training.bind()

    def __call__(self) -> None:
        """Launch one step."""
        assert self._graph is not None, "call capture() first"
        self.batch.feed()
        self._graph.replay()
        self._steps += 1


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


class HostedStep:
    """A step that takes the loader's next batch and trains on it."""

    def __init__(self, training: Training, loader: AnyLoader | FedLoader) -> None:
        self.kind = loader.kind
        self._training, self.loader = training, loader
        self.losses: list[torch.Tensor] = []
        self.images, self.labels = torch.empty(0), torch.empty(0, dtype=torch.int64)  # of the last step

    def peek(self) -> Batch:
        """Return the next batch without training on it."""
        return self.loader.next_batch()

    def warm_up(self) -> None:
        """Run one step: an engine that compiles does so now."""
        self()

    def rewind(self) -> None:
        """Go back to the first batch, and forget the losses."""
        self.loader.rewind()
        self.losses = []

    def take_losses(self) -> torch.Tensor:
        """Return the mean loss of the steps since the last call; NaN if there were none."""
        losses, self.losses = self.losses, []
        return torch.stack(losses).float().mean() if losses else torch.tensor(torch.nan)

    def __call__(self) -> None:
        """Queue one step."""
        with section("load"):
            self.images, self.labels = self.loader.next_batch()
        self.losses.append(self._training.update(self.images, self.labels))
