"""Choose the loader of a split on a device (needs torch, unlike `labkit.data` itself).

    resident    the whole uint8 split is in the device's memory (on a CPU: the memory map); the host sends indices
    device      as resident, but the order is on the device too, and one kernel makes a batch
    streaming   for a split that does not fit: the host gathers batches ahead, in pinned memory

32x32 images nearly always fit: all of ImageNet32 is 3.9 GB.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from labkit.data.augment import UNCHANGED, Augment, MemoryFormat, Preparation
from labkit.data.dataset import Levels, Split
from labkit.data.device_loader import DeviceLoader
from labkit.data.loader import ResidentLoader, StreamingLoader
from labkit.data.order import WHOLE, Shard
from labkit.errors import UserError

RESIDENT_SHARE = 0.5  # share of the free memory; the model, its activations and the allocator need the rest
AnyLoader: TypeAlias = ResidentLoader | StreamingLoader | DeviceLoader


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
    dtype: torch.dtype = torch.float32,
    on_device: bool = False,
    shard: Shard = WHOLE,
    free_bytes: int | None = None,
) -> AnyLoader:
    """Return a loader that keeps the split on the device if RESIDENT_SHARE of the free memory suffices, else streams.

    `free_bytes` is the free memory. None asks a GPU, and assumes that a CPU's memory suffices. `loader.kind` names the
    choice. `on_device` asks for a `DeviceLoader`, which needs a GPU and a split that fits. Images are normalised,
    scaled up to `image_px` and laid out in the memory format. A `DeviceLoader` returns images as `dtype`, the other
    loaders as float32. `shard` is this rank among several ranks. Raise UserError for a batch under 1, an `image_px`
    under the side of the images, or an unknown memory format.
    """
    side = split.images.shape[-1]
    if batch < 1:
        raise UserError(f"a batch of {batch} images was asked for; ask for at least 1.")
    if image_px is not None and image_px < side:
        raise UserError(f"image_px is {image_px}; images of {side} pixels are only ever scaled up.")
    where = torch.device(device)
    if free_bytes is None and where.type == "cuda":
        free_bytes, _total = torch.cuda.mem_get_info(where)
    fits = free_bytes is None or resident_bytes(split) <= RESIDENT_SHARE * free_bytes
    about: dict[str, Any] = {"image_px": image_px, "memory_format": memory_format}
    prepare = Preparation(device=where, mean=mean, std=std, seed=seed, augment=augment, **about)
    shared: dict[str, Any] = {"batch": batch, "prepare": prepare, "seed": seed, "shard": shard}
    if not fits:
        return StreamingLoader(split, **shared)
    if on_device and where.type == "cuda":
        return DeviceLoader(split, **shared, dtype=dtype)
    return ResidentLoader(split, **shared)
