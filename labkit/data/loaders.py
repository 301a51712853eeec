"""Which loader a split gets on a device (needs torch, which `labkit.data` alone does not).

    resident    the whole uint8 split lies in the device's memory (a CPU's: the memory map); the host sends indices
    device      the same, with the order there too: a batch is made by one kernel
    streaming   it does not fit: the host gathers batches ahead, in pinned memory

32x32 images nearly always fit: all of ImageNet32 is 3.9 GB.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from labkit.data.augment import UNCHANGED, Augment, MemoryFormat, Preparation
from labkit.data.dataset import Levels, Split
from labkit.data.device_loader import DeviceLoader
from labkit.data.loader import ResidentLoader, StreamingLoader, check_sizes
from labkit.data.order import WHOLE, Shard

RESIDENT_SHARE = 0.5  # of the free memory: the model, its activations and the allocator need the rest
AnyLoader: TypeAlias = ResidentLoader | StreamingLoader | DeviceLoader


def resident_bytes(split: Split) -> int:
    """Device memory that a whole split takes, in bytes: uint8 images and int64 labels."""
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
    """A loader that keeps the split on the device when it fits into RESIDENT_SHARE of the free memory, or streams it.

    `free_bytes` is that free memory; None asks the device, and takes a CPU's as enough. The choice is `loader.kind`.
    `on_device` asks for a `DeviceLoader`, where the device is a GPU and the split fits.
    Images come normalised in the memory format, scaled up to `image_px`, as `dtype` from a `DeviceLoader` and as
    float32 from the others. `shard` says which of several ranks this one is. Raises UserError for a batch under 1, an
    `image_px` under the images' own side, or another memory format.
    """
    check_sizes(split, batch=batch, image_px=image_px)
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
