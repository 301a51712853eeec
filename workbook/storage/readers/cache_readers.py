"""Readers of decoded images: `mapped` gathers from the memory-mapped file, `resident` from the device's memory."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.data.loaders import upload
from labkit.data.order import make_order
from workbook.storage.readers.reader import Part, Reader, Wanted


class _Moves:
    """Endless draws of a batch: sample numbers, crop origins (2, B) and flips (B,)."""

    def __init__(self, wanted: Wanted, samples: int, edge_px: int) -> None:
        self._wanted, self._spare = wanted, edge_px - wanted.image_px
        self._order = make_order(
            samples, seed=wanted.seed, batch=wanted.batch, shard=wanted.shard, shuffled=wanted.shuffled
        )
        self._chance = np.random.default_rng(wanted.seed)

    def __next__(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        batch = self._wanted.batch
        chosen = self._order.take(batch)
        if not self._wanted.train:
            return chosen, np.full((2, batch), self._spare // 2), np.zeros(batch, dtype=bool)
        return chosen, self._chance.integers(0, self._spare + 1, (2, batch)), self._chance.random(batch) < 0.5


class MappedReader(Reader):
    """Threads gather the next batches, each into a buffer of its own. Without workers the caller gathers."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._images, self._labels = _arrays(wanted)
        self._moves = _Moves(wanted, len(self._labels), self._images.shape[-1])
        self._threads = ThreadPoolExecutor(wanted.workers, "labkit-mapped") if wanted.workers else None
        self._ahead: deque[Future[Part]] = deque()

    def _next_part(self) -> Part:
        if self._threads is None:
            return self._gather(*next(self._moves))
        while len(self._ahead) <= self.wanted.workers:
            self._ahead.append(self._threads.submit(self._gather, *next(self._moves)))
        return self._ahead.popleft().result()

    def _gather(self, chosen: NDArray[np.int64], origin: NDArray[np.int64], flips: NDArray[np.bool_]) -> Part:
        px = self.wanted.image_px
        images = torch.empty((len(chosen), 3, px, px), dtype=torch.uint8, pin_memory=self.wanted.pinned)
        into = images.numpy()
        for row, (sample, y, x, flipped) in enumerate(zip(chosen, *origin, flips, strict=True)):
            window = self._images[sample, :, y : y + px, x : x + px]
            into[row] = window[..., ::-1] if flipped else window
        return Part(images, torch.from_numpy(self._labels[chosen]))

    def close(self) -> None:
        """End the threads, and close the file with its last reference."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()
        self._images = np.empty((0, 3, 0, 0), dtype=np.uint8)


class ResidentReader(Reader):
    """The whole set in the device's memory. One gather makes a batch."""

    on_device = True

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        images, labels = _arrays(wanted)
        self._moves = _Moves(wanted, len(labels), images.shape[-1])
        self._images = upload(images, torch.device(wanted.device))
        self._labels = torch.from_numpy(labels).to(wanted.device)
        self._pixels = torch.arange(wanted.image_px, device=wanted.device)

    def _next_part(self) -> Part:
        chosen, (y, x), flips = (self._upload(values) for values in next(self._moves))
        columns = torch.where(flips[:, None], self._pixels.flip(0), self._pixels) + x[:, None]
        rows = self._pixels + y[:, None]
        channels = torch.arange(3, device=self._images.device)[:, None, None]
        images = self._images[chosen[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :]]
        return Part(images, self._labels[chosen])

    def _upload(self, values: NDArray[Any]) -> torch.Tensor:
        on_host = torch.from_numpy(values)
        return (on_host.pin_memory() if self.wanted.pinned else on_host).to(self._images.device, non_blocking=True)

    def close(self) -> None:
        """Release the memory."""
        self._images = self._labels = torch.empty(0)


def _arrays(wanted: Wanted) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the set's images as a memory map, and its labels."""
    by_name = {file.name.split(".")[0]: file for file in wanted.stored.files}
    images = np.load(by_name["images"], mmap_mode="r", allow_pickle=False)
    return images, np.load(by_name["labels"], allow_pickle=False).astype(np.int64)
