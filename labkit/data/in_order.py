"""A split once from its first sample to its last, for validation after an epoch (needs torch)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from labkit.data.augment import MemoryFormat, Preparation
from labkit.data.dataset import Levels, Split
from labkit.data.loader import Batch, check_sizes
from labkit.errors import UserError


def batches_in_order(
    split: Split,
    *,
    batch: int,
    device: torch.device | str,
    mean: Levels,
    std: Levels,
    image_px: int | None = None,
    memory_format: MemoryFormat = "contiguous",
    dtype: torch.dtype = torch.float32,
) -> Iterator[Batch]:
    """All images once, in order, without augmentation: `dtype` (B, 3, H, W), normalised, and labels int64 (B,).

    Every B is `batch` but the last, which is what remains. Images are scaled up bilinearly where `image_px` says so.
    Raises UserError, before the first batch is asked for, for a batch under 1, an `image_px` under the images' own
    side, another memory format, or a `dtype` that is not floating.
    """
    check_sizes(split, batch=batch, image_px=image_px)
    if not dtype.is_floating_point:
        raise UserError(f"images were asked for as {dtype}; normalised images need a floating type.")
    where = torch.device(device)
    prepare = Preparation(device=where, mean=mean, std=std, image_px=image_px, memory_format=memory_format)
    return prepared_in_order(split, batch=batch, device=where, prepare=lambda images: prepare(images).to(dtype))


def prepared_in_order(
    split: Split, *, batch: int, device: torch.device, prepare: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[Batch]:
    """All samples once, in order: what `prepare` makes of their bytes on the device, and labels int64 (B,)."""
    for first in range(0, len(split), batch):
        here = slice(first, first + batch)
        samples = _upload(torch.from_numpy(np.array(split.images[here])), device)  # copied: a map is not writable
        labels = _upload(torch.from_numpy(split.labels[here].astype(np.int64)), device)
        yield prepare(samples), labels


def _upload(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; a GPU copies it from pinned memory, so that the host need not wait."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
