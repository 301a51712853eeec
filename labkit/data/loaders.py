"""Loaders of the batches of a split (needs torch, unlike `labkit.data` itself). `make_loader` chooses one.

    resident    the whole uint8 split is in the device's memory (on a CPU: the memory map), and a gather on the device
                makes a batch
    streaming   for a split that does not fit: a thread gathers the next batch into pinned memory while the device works
                on the current batch

All loaders return the same samples in the same order. `in_order` yields each sample of a split once, for validation
after an epoch. 32x32 images nearly always fit: all of ImageNet32 is 3.9 GB.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from labkit.data.augment import UNCHANGED, Augment, MemoryFormat, Preparation
from labkit.data.dataset import Images, Levels, Split
from labkit.data.order import WHOLE, Shard, make_order
from labkit.errors import UserError

RESIDENT_SHARE = 0.5  # share of the free memory; the model, its activations and the allocator need the rest
_UPLOAD_IMAGES = 8192  # images copied to the device at once, 25 MB

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class Prepares(Protocol):
    """Protocol of a callable that turns a batch of bytes into a model's input on `device`."""

    device: torch.device

    def __call__(self, images: torch.Tensor, /) -> torch.Tensor:
        """Return the float32 input made from uint8 samples, one sample per row."""

    def rewind(self) -> None:
        """Restart the random numbers, so that the same ones are drawn again."""


class Loader(ABC):
    """Base class of the loaders: `next_batch()` without end, `rewind()`, `close()`.

    Batches are always full and continue across the end of an epoch. Shapes are therefore static, and every sample
    occurs exactly once per epoch. `seed` decides the order. `shard` is this rank among several ranks.
    """

    kind: Literal["resident", "streaming"]

    def __init__(
        self,
        split: Split,
        *,
        batch: int,
        prepare: Prepares,
        seed: int = 0,
        shard: Shard = WHOLE,
    ) -> None:
        self.batch, self.samples, self.device = batch, len(split), prepare.device
        self._split, self._prepare, self._seed, self._shard = split, prepare, seed, shard
        self._start_order()
        self._open()

    def _start_order(self) -> None:
        self._order = make_order(self.samples, seed=self._seed, batch=self.batch, shard=self._shard)

    def next_batch(self) -> Batch:
        """Return the next prepared batch on the device: images float32 (B, 3, H, W), and labels int64 (B,).

        The call does not wait for the device.
        """
        images, labels = self._fetch()
        return self._prepare(images), labels

    def rewind(self) -> None:
        """Go back to the first batch. The same batches come again, bit for bit."""
        self._start_order()
        self._prepare.rewind()

    @abstractmethod
    def _open(self) -> None:
        """Allocate the buffers and threads of this kind of loader."""

    @abstractmethod
    def _fetch(self) -> Batch:
        """Return the uint8 images and int64 labels of the next batch, on the device."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory. The loader cannot be used afterwards."""


class ResidentLoader(Loader):
    """Loader that keeps the whole split in the device's memory. On a CPU it reads the memory map, without a copy."""

    kind = "resident"

    def _open(self) -> None:
        if self.device.type != "cpu":
            self._images = upload(self._split.images, self.device)
            self._labels = torch.from_numpy(self._split.labels.astype(np.int64)).to(self.device)

    def _fetch(self) -> Batch:
        chosen = self._order.take(self.batch)
        if self.device.type == "cpu":
            images = torch.empty((self.batch, *self._split.images.shape[1:]), dtype=torch.uint8)
            labels = torch.empty(self.batch, dtype=torch.int64)
            _gather(self._split, chosen, images, labels)
            return images, labels
        index = torch.from_numpy(chosen).pin_memory().to(self.device, non_blocking=True)
        return self._images[index], self._labels[index]

    def close(self) -> None:
        """Release the device memory."""
        self._images = self._labels = torch.empty(0)


class _Slot:
    """One of the two host buffers, pinned for a GPU. The event `copied` marks when the buffer may be refilled."""

    def __init__(self, batch: int, image_shape: tuple[int, ...], *, pinned: bool) -> None:
        self.images = torch.empty((batch, *image_shape), dtype=torch.uint8, pin_memory=pinned)
        self.labels = torch.empty(batch, dtype=torch.int64, pin_memory=pinned)
        self.copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call, unused-ignore]


class StreamingLoader(Loader):
    """Loader that gathers batches from the memory map into two host buffers. Copies overlap the device's work."""

    kind = "streaming"
    _pending: Future[tuple[_Slot, torch.Tensor, torch.Tensor]]

    def _open(self) -> None:
        on_gpu = self.device.type == "cuda"
        self._slots = [_Slot(self.batch, self._split.images.shape[1:], pinned=on_gpu) for _ in range(2)]
        self._copies = torch.cuda.Stream(self.device) if on_gpu else None  # type: ignore[no-untyped-call, unused-ignore]
        self._turn = 0
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="labkit-data")
        self._pending = self._worker.submit(self._fill)

    def _fill(self) -> tuple[_Slot, torch.Tensor, torch.Tensor]:
        """Fill the next buffer and start its copy. Only the worker thread runs this and touches order and turn."""
        slot = self._slots[self._turn]
        self._turn = 1 - self._turn
        if slot.copied is not None:
            slot.copied.synchronize()  # wait, on this thread only, for the buffer's last copy, two batches ago
        _gather(self._split, self._order.take(self.batch), slot.images, slot.labels)
        if self._copies is None or slot.copied is None:
            return slot, slot.images, slot.labels
        with torch.cuda.device(self.device), torch.cuda.stream(self._copies):
            images = slot.images.to(self.device, non_blocking=True)
            labels = slot.labels.to(self.device, non_blocking=True)
            slot.copied.record(self._copies)
        return slot, images, labels

    def _fetch(self) -> Batch:
        slot, images, labels = self._pending.result()
        if slot.copied is None:
            labels = labels.clone()  # the caller keeps the labels; the preparation copies the images
        else:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(slot.copied)
            for tensor in (images, labels):
                tensor.record_stream(current)  # allocated on the copying stream, used on the current stream
        self._pending = self._worker.submit(self._fill)
        return images, labels

    def rewind(self) -> None:
        """Go back to the first batch, and drop the batch that was prefetched."""
        wait([self._pending])  # until then the worker thread uses the order
        super().rewind()
        self._pending = self._worker.submit(self._fill)

    def close(self) -> None:
        """End the worker thread and release the buffers."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._slots = []


def _gather(split: Split, chosen: NDArray[np.int64], images: torch.Tensor, labels: torch.Tensor) -> None:
    """Copy the chosen samples from the memory map into the host tensors `images` and `labels`."""
    # With mode 'raise' NumPy gathers into an extra buffer first; the indices are always in range, so 'clip' is safe.
    np.take(split.images, chosen, axis=0, out=images.numpy(), mode="clip")
    labels.copy_(torch.from_numpy(split.labels[chosen]))


def upload(images: Images, device: torch.device) -> torch.Tensor:
    """Return a copy of the images on the device. Parts are sent in turn, so the host never holds all images."""
    on_device = torch.empty(images.shape, dtype=torch.uint8, device=device)
    for first in range(0, len(images), _UPLOAD_IMAGES):
        part = np.array(images[first : first + _UPLOAD_IMAGES])  # a copy, because torch requires writable memory
        on_device[first : first + len(part)] = torch.from_numpy(part).to(device)
    return on_device


def resident_bytes(split: Split) -> int:
    """Return the device memory of a whole split in bytes: uint8 images and int64 labels."""
    return int(split.images.nbytes) + 8 * len(split)


def make_loader(
    split: Split,
    *,
    batch: int,
    device: torch.device | str,
    mean: Levels,
    std: Levels,
    seed: int = 0,
    augment: Augment = UNCHANGED,
    image_px: int | None = None,
    memory_format: MemoryFormat = "contiguous",
    shard: Shard = WHOLE,
    free_bytes: int | None = None,
) -> Loader:
    """Return a loader that keeps the split on the device if RESIDENT_SHARE of the free memory suffices, else streams.

    `free_bytes` is the free memory. None asks a GPU, and assumes that a CPU's memory suffices. `loader.kind` names the
    choice. Images are normalised, scaled up to `image_px` and laid out in the memory format, as float32. `shard` is
    this process among several. Raise UserError for a batch under 1, an `image_px` under the side of the images, or an
    unknown memory format.
    """
    side = split.images.shape[-1]
    if batch < 1:
        raise UserError(f"a batch of {batch} images was asked for; ask for at least 1.")
    if image_px is not None and image_px < side:
        raise UserError(f"image_px is {image_px}; images of {side} pixels are only ever scaled up.")
    where = torch.device(device)
    prepare = Preparation(
        device=where, mean=mean, std=std, seed=seed, augment=augment, image_px=image_px, memory_format=memory_format
    )
    kind = ResidentLoader if fits(split, where, free_bytes) else StreamingLoader
    return kind(split, batch=batch, prepare=prepare, seed=seed, shard=shard)


def fits(split: Split, device: torch.device, free_bytes: int | None = None) -> bool:
    """Return whether a split fits into RESIDENT_SHARE of a device's free memory, which None asks a GPU for."""
    if free_bytes is None and device.type == "cuda":
        free_bytes, _total = torch.cuda.mem_get_info(device)
    return free_bytes is None or resident_bytes(split) <= RESIDENT_SHARE * free_bytes


def in_order(split: Split, *, batch: int, prepare: Prepares, dtype: torch.dtype = torch.float32) -> Iterator[Batch]:
    """Yield all samples once, in order: the prepared samples as `dtype`, and labels int64 (B,).

    The last batch may be smaller than `batch`.
    """
    device = prepare.device
    for first in range(0, len(split), batch):
        here = slice(first, first + batch)
        samples = _to_device(torch.from_numpy(np.array(split.images[here])), device)  # a copy, as the map is read-only
        labels = _to_device(torch.from_numpy(split.labels[here].astype(np.int64)), device)
        yield prepare(samples).to(dtype), labels


def _to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on the device. A GPU copies from pinned memory, so that the host does not wait."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
