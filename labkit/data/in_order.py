"""Batches of a split in order, from the first sample to the last, for validation after an epoch (needs torch)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from labkit.data.dataset import Split
from labkit.data.loader import Batch, Prepares


def in_order(split: Split, *, batch: int, prepare: Prepares, dtype: torch.dtype = torch.float32) -> Iterator[Batch]:
    """Yield all samples once, in order: the prepared samples as `dtype`, and labels int64 (B,).

    The last batch may be smaller than `batch`.
    """
    device = prepare.device
    for first in range(0, len(split), batch):
        here = slice(first, first + batch)
        samples = _upload(torch.from_numpy(np.array(split.images[here])), device)  # a copy, as the map is read-only
        labels = _upload(torch.from_numpy(split.labels[here].astype(np.int64)), device)
        yield prepare(samples).to(dtype), labels


def _upload(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on the device. A GPU copies from pinned memory, so that the host does not wait."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
