"""A loader that needs nothing from the host between steps: images, order and step counter lie on the device.

    feed()   on the host, before a step is launched: sees to it that the order reaches far enough
    load()   on the device, also inside a captured step: makes the next batch in `images` and `labels`

`images` and `labels` keep their addresses, as a CUDA graph wants it. The order is a ring that the host refills in large
parts, on the stream of the steps, so that a part is only overwritten when the steps that read it are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from labkit.data.augment import TORCH_FORMATS, MemoryFormat, Preparation
from labkit.data.dataset import Split
from labkit.data.loader import Batch, StreamingLoader, upload
from labkit.data.order import WHOLE, Shard, make_order
from labkit.data.triton_here import why_no_triton

PART = 2**16  # samples that are shuffled and sent at once, at least


class StaticBatch:
    """A batch that stays in one place: `images` (B, 3, E, E), `labels` int64 (B,). The next one overwrites it."""

    kind: Literal["device", "streaming"]

    def __init__(
        self, *, batch: int, image_px: int, device: torch.device, dtype: torch.dtype, memory_format: MemoryFormat
    ) -> None:
        self.batch = batch
        shape = (batch, 3, image_px, image_px)
        memory = TORCH_FORMATS[memory_format]
        self.images = torch.empty(shape, device=device, dtype=dtype, memory_format=memory)
        self.labels = torch.empty(batch, device=device, dtype=torch.int64)

    def feed(self) -> None:
        """What the host has to do before the next step is launched."""

    def load(self) -> None:
        """Queue what makes the next batch; may be captured."""

    def next_batch(self) -> Batch:
        """The next batch, queued now."""
        self.feed()
        self.load()
        return self.images, self.labels

    def rewind(self) -> None:
        """Back to the first batch."""

    def generators(self) -> Sequence[torch.Generator]:
        """Random generators that `load` draws from, which a graph has to know."""
        return ()


class HostFed(StaticBatch):
    """For a set that does not fit on the device: its streaming loader fills the place before each step."""

    kind = "streaming"

    def __init__(
        self, loader: StreamingLoader, *, image_px: int, dtype: torch.dtype, memory_format: MemoryFormat
    ) -> None:
        device = loader.device
        super().__init__(batch=loader.batch, image_px=image_px, device=device, dtype=dtype, memory_format=memory_format)
        self._loader = loader

    def feed(self) -> None:
        """Copy the loader's next batch."""
        images, labels = self._loader.next_batch()
        self.images.copy_(images)
        self.labels.copy_(labels)

    def rewind(self) -> None:
        """Back to the first batch."""
        self._loader.rewind()


class DeviceLoader(StaticBatch):
    """The whole uint8 split on the device; a batch is one kernel (Triton), or a few operators on older devices.

    Samples come in the order of `EpochOrder(seed)`, each exactly once an epoch, in full batches that go on over the
    end of an epoch; of several ranks (`shard`) each has its part of that order on its own device. Flips and crops are
    drawn from `seed` and the sample's position in the run, by the kernel of all ranks together: they make the images
    that one device with their total batch would.
    """

    kind = "device"

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        prepare: Preparation,
        seed: int,
        dtype: torch.dtype,
        shard: Shard = WHOLE,
        one_kernel: bool | None = None,
    ) -> None:
        self._edge, device = prepare.image_px or split.images.shape[-1], prepare.device
        memory_format = prepare.memory_format
        super().__init__(batch=batch, image_px=self._edge, device=device, dtype=dtype, memory_format=memory_format)
        self.samples = len(split)
        self._prepare, self._seed, self._shard = prepare, seed, shard
        self._scale = tuple(1 / max(value, 1.0) for value in prepare.std)  # as the preparation has it
        self._source = upload(split.images, device)
        self._source_labels = torch.from_numpy(split.labels.astype(np.int64)).to(device)
        self._part = max(PART, batch)
        self._capacity = 2 * self._part
        self._ring = torch.zeros(self._capacity, dtype=torch.int32, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._one_kernel = why_no_triton(device) is None if one_kernel is None else one_kernel
        self._offsets = torch.arange(batch, device=device)
        self.rewind()

    def rewind(self) -> None:
        """Back to the first batch: the same samples with the same flips and crops."""
        self._order = make_order(self.samples, seed=self._seed, batch=self.batch, shard=self._shard)
        self._filled = self._issued = 0
        self._step.zero_()
        self._prepare.rewind()

    def feed(self) -> None:
        """Send the next part of the order when the next batch needs it."""
        self._issued += self.batch
        if self._issued > self._filled:
            at = self._filled % self._capacity
            part = torch.from_numpy(self._order.take(self._part).astype(np.int32))
            if self._ring.is_cuda:
                part = part.pin_memory()
            self._ring[at : at + self._part].copy_(part, non_blocking=True)
            self._filled += self._part

    def load(self) -> None:
        """Queue the next batch; the counter moves on."""
        if self._one_kernel:
            self._launch()
        else:
            chosen = self._ring[(self._step * self.batch + self._offsets) % self._capacity]
            self.images.copy_(self._prepare(self._source[chosen]))
            self.labels.copy_(self._source_labels[chosen])
        self._step += 1

    def generators(self) -> Sequence[torch.Generator]:
        """The preparation's, where that draws the flips and crops."""
        return () if self._one_kernel else (self._prepare.generator,)

    def close(self) -> None:
        """Give the device's memory back."""
        self._source = self._source_labels = self.images = self.labels = torch.empty(0)

    def _launch(self) -> None:
        from labkit.data.kernels import TILE, make_batch

        augment = self._prepare.augment
        make_batch[(self.batch, -(-(self._edge**2) // TILE))](
            self._source,
            self._source_labels,
            self._ring,
            self._step,
            self.images,
            self.labels,
            self._capacity,
            self._seed,
            self._shard.rank,
            self._shard.ranks,
            *self._prepare.mean,
            *self._scale,
            BATCH=self.batch,
            SIDE=self._source.shape[-1],
            EDGE=self._edge,
            PAD=augment.pad_px if augment.crop else 0,
            FLIP=augment.flip,
            CHANNELS_LAST=self._prepare.memory_format == "channels_last",
            TILE=TILE,
            num_warps=4,
        )
