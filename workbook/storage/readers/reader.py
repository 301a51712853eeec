"""What all readers share: full batches, skipped samples, pinned memory, errors; and the loader of a reader (torch)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from labkit.data.content import what_is
from labkit.data.loaders import Batch, Prepares
from labkit.data.order import WHOLE, Shard
from labkit.errors import LabkitError

if TYPE_CHECKING:
    from workbook.storage import StoredSet


PATIENCE_S = 120.0  # without a batch in this time, a reader has failed


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a reader shall deliver; `workbook.storage.readers.open_reader` explains the fields."""

    name: str
    stored: StoredSet
    batch: int
    image_px: int
    workers: int
    seed: int
    device: str
    shuffled: bool
    train: bool
    shard: Shard = WHOLE

    @property
    def pinned(self) -> bool:
        """Whether batches on the host are in pinned memory."""
        return self.device == "cuda"


class Part(NamedTuple):
    """At most a batch: uint8 (n, 3, px, px), int64 (n,), and the number of samples skipped in making it."""

    images: torch.Tensor
    labels: torch.Tensor
    skipped: int = 0


class Reader:
    """Endless full batches of a stored set, made of the parts of `_parts`. `skipped` counts unreadable samples.

    A part that a skipped sample made short waits until short parts fill a batch. So no sample is lost or repeated, and
    only short parts are copied.
    """

    on_device = False
    _parts: Any

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.batch, self.epoch_images = wanted, wanted.batch, wanted.stored.images
        self.skipped = 0
        self._short: list[Part] = []
        self._skipped_in_turn = 0

    def _next_part(self) -> Part:
        """Return the next samples, at most a batch."""
        part: Part = next(self._parts)
        return part

    def close(self) -> None:
        """End processes and threads, and close files. The reader cannot be used afterwards."""
        self._parts = iter(())  # libraries end threads and processes to which nothing refers

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uint8 (B, 3, px, px) and int64 (B,). Raise LabkitError if a worker died or nothing can be read."""
        while True:
            try:
                part = self._next_part()
            except Exception as error:
                raise LabkitError(f"the reader {self.wanted.name} failed: {_first_line(error)}.") from error
            self.skipped += part.skipped
            self._skipped_in_turn = 0 if len(part.labels) else self._skipped_in_turn + part.skipped
            if self._skipped_in_turn >= self.epoch_images:
                first = self.wanted.stored.files[0]
                raise LabkitError(
                    f"the reader {self.wanted.name} can read none of the {self.epoch_images:,} images: the first file, "
                    f"{first}, is {what_is(first)}."
                )
            if len(part.labels) == self.batch:
                return self._ready(part.images, part.labels)
            if len(part.labels):
                self._short.append(part)
            if sum(len(short.labels) for short in self._short) >= self.batch:
                images = torch.cat([short.images for short in self._short])
                labels = torch.cat([short.labels for short in self._short])
                self._short = [Part(images[self.batch :], labels[self.batch :])]
                return self._ready(images[: self.batch], labels[: self.batch])

    def _ready(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.wanted.pinned and not self.on_device and not images.is_pinned():
            return images.pin_memory(), labels.pin_memory()
        return images, labels


def _first_line(error: Exception) -> str:
    """Return the error in one line. A DataLoader's begins with the worker's traceback, and its last line counts."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    line = re.sub(r"^labkit[\w.]+: ", "", lines[-1]) if lines[0].startswith("Caught ") else lines[0]
    return line.removesuffix(".")[:300]


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
