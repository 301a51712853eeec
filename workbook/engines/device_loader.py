"""A loader that keeps images, sample order and step counter on the device, so that no step waits for the host.

    feed()   runs on the host before each step: extends the order as far as the step needs
    load()   runs on the device, also inside a captured step: writes the next batch into `images` and `labels`

`images` and `labels` keep their addresses, as a CUDA graph requires. The order is a ring buffer. The host refills the
ring in large parts on the stream of the steps, so a part is overwritten only after the steps that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch

from labkit.data.augment import TORCH_FORMATS, MemoryFormat, Preparation
from labkit.data.dataset import Split
from labkit.data.loaders import Batch, Loader, StreamingLoader, upload
from labkit.data.order import WHOLE, Shard, make_order
from workbook.engines.triton_check import works
from workbook.storage.readers.reader import FedLoader

HostLoader: TypeAlias = StreamingLoader | FedLoader
PART = 2**16  # smallest number of samples whose order is sent at once


class StaticBatch:
    """A batch at fixed addresses: `images` (B, 3, E, E), `labels` int64 (B,). Each batch overwrites the last."""

    kind: Literal["device", "streaming", "reader"]

    def __init__(
        self, *, batch: int, image_px: int, device: torch.device, dtype: torch.dtype, memory_format: MemoryFormat
    ) -> None:
        self.batch = batch
        shape = (batch, 3, image_px, image_px)
        memory = TORCH_FORMATS[memory_format]
        self.images = torch.empty(shape, device=device, dtype=dtype, memory_format=memory)
        self.labels = torch.empty(batch, device=device, dtype=torch.int64)

    def feed(self) -> None:
        """Do the host's work for the next step. Call before the step is launched."""

    def load(self) -> None:
        """Queue the operations that write the next batch. A CUDA graph may capture them."""

    def next_batch(self) -> Batch:
        """Queue the next batch and return its tensors."""
        self.feed()
        self.load()
        return self.images, self.labels

    def rewind(self) -> None:
        """Go back to the first batch."""

    def generators(self) -> Sequence[torch.Generator]:
        """Return the random generators that `load` draws from. A CUDA graph must register them."""
        return ()


class HostFed(StaticBatch):
    """Static batch for images that are not on the device. A loader on the host fills the batch before each step."""

    def __init__(
        self, loader: StreamingLoader | FedLoader, *, image_px: int, dtype: torch.dtype, memory_format: MemoryFormat
    ) -> None:
        device = loader.device
        super().__init__(batch=loader.batch, image_px=image_px, device=device, dtype=dtype, memory_format=memory_format)
        self._loader, self.kind = loader, loader.kind

    def feed(self) -> None:
        """Copy the loader's next batch."""
        images, labels = self._loader.next_batch()
        self.images.copy_(images)
        self.labels.copy_(labels)

    def rewind(self) -> None:
        """Go back to the first batch."""
        self._loader.rewind()


class DeviceLoader(StaticBatch):
    """Loader with the whole split on the device. A Triton kernel, or on older devices torch operators, make a batch.

    Samples come in the order of `EpochOrder(seed)`, each exactly once per epoch. Batches are full and continue across
    the end of an epoch. With several ranks (`shard`), each device holds its rank's part of the order. The kernel draws
    flips and crops from `seed` and the sample's position among the samples of all ranks. All ranks together therefore
    make the images that one device with their total batch makes.
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
        self._scale = tuple(1 / max(value, 1.0) for value in prepare.std)  # the same minimum as in Preparation
        self._source = upload(split.images, device)
        self._source_labels = torch.from_numpy(split.labels.astype(np.int64)).to(device)
        self._part = max(PART, batch)
        self._capacity = 2 * self._part
        self._ring = torch.zeros(self._capacity, dtype=torch.int32, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._one_kernel = works(device) if one_kernel is None else one_kernel
        self._offsets = torch.arange(batch, device=device)
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first batch. The same samples come with the same flips and crops."""
        self._order = make_order(self.samples, seed=self._seed, batch=self.batch, shard=self._shard)
        self._filled = self._issued = 0
        self._step.zero_()
        self._prepare.rewind()

    def feed(self) -> None:
        """Send the next part of the order if the next batch needs it."""
        self._issued += self.batch
        if self._issued > self._filled:
            at = self._filled % self._capacity
            part = torch.from_numpy(self._order.take(self._part).astype(np.int32))
            if self._ring.is_cuda:
                part = part.pin_memory()
            self._ring[at : at + self._part].copy_(part, non_blocking=True)
            self._filled += self._part

    def load(self) -> None:
        """Queue the next batch and advance the step counter."""
        if self._one_kernel:
            self._launch()
        else:
            chosen = self._ring[(self._step * self.batch + self._offsets) % self._capacity]
            self.images.copy_(self._prepare(self._source[chosen]))
            self.labels.copy_(self._source_labels[chosen])
        self._step += 1

    def generators(self) -> Sequence[torch.Generator]:
        """Return the generator of the preparation where the preparation, not the kernel, draws flips and crops."""
        return () if self._one_kernel else (self._prepare.generator,)

    def close(self) -> None:
        """Release the device memory."""
        self._source = self._source_labels = self.images = self.labels = torch.empty(0)

    def _launch(self) -> None:
        from workbook.engines.batch_kernel import TILE, make_batch

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


AnyLoader: TypeAlias = Loader | DeviceLoader
