"""A loader of training batches that a reader delivers: copied to the device, normalised, and timed (needs torch)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from labkit.data.loaders import Batch, Prepares
from workbook.storage.readers.reader import Reader


class FedLoader:
    """Batches of a reader on the device, without end. `waited_s` are the seconds in which the caller waited for it.

    A reader cannot go back. So the first `repeats` batches stay in the host's memory, and come again after `rewind`:
    steps that are compared have the same images.
    """

    kind: Literal["reader"] = "reader"

    def __init__(self, open_reader: Callable[[], Reader], *, prepare: Prepares, repeats: int) -> None:
        self.reader = reader = open_reader()
        self.batch, self.samples, self.device = reader.batch, reader.epoch_images, prepare.device
        self._open_reader, self._prepare, self._repeats = open_reader, prepare, repeats
        self._first: list[Batch] = []
        self._next = 0
        self.waited_s = 0.0

    def next_batch(self) -> Batch:
        """Return the next batch on the device: images float32 (B, 3, px, px), labels int64 (B,).

        The call waits for the reader, but not for the device.
        """
        images, labels = self._from_host()
        return self._prepare(images.to(self.device, non_blocking=True)), labels.to(self.device, non_blocking=True)

    def _from_host(self) -> Batch:
        self._next += 1
        if self._next <= len(self._first):
            return self._first[self._next - 1]
        began = time.perf_counter()
        batch = self.reader.next_batch()
        self.waited_s += time.perf_counter() - began
        if len(self._first) < self._repeats:
            self._first.append(batch)
        return batch

    def rewind(self) -> None:
        """Return the first batches once more, and then those that follow the last one."""
        self._next = 0
        self._prepare.rewind()

    def reopen(self) -> None:
        """Open the reader anew after `close`: it begins at its first batch."""
        self.reader = self._open_reader()
        self._first = []
        self.rewind()

    def close(self) -> None:
        """Close the reader."""
        self._first = []
        self.reader.close()
