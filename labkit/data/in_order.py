"""A split once from its first sample to its last, for validation after an epoch (needs torch)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from labkit.data.dataset import Split
from labkit.data.loader import Batch, Prepares


def in_order(split: Split, *, batch: int, prepare: Prepares, dtype: torch.dtype = torch.float32) -> Iterator[Batch]:
    """All samples once, in order: what `prepare` makes of their bytes, as `dtype`, and labels int64 (B,).

    Every B is `batch` but the last, which is what remains.
    """
    device = prepare.device
    for first in range(0, len(split), batch):
        here = slice(first, first + batch)
        samples = _upload(torch.from_numpy(np.array(split.images[here])), device)  # copied: a map is not writable
        labels = _upload(torch.from_numpy(split.labels[here].astype(np.int64)), device)
        yield prepare(samples).to(dtype), labels


def _upload(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; a GPU copies it from pinned memory, so that the host need not wait."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
