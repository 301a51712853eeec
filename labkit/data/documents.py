"""Bags of words on a device: their bits lie there, and become rows of 0 and 1 (needs torch).

A resident loader feeds them as it feeds images; 14 MB of bits always fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from labkit.data.dataset import Split
from labkit.data.in_order import prepared_in_order
from labkit.data.loader import Batch, check_sizes


class Unpacked:
    """Turns bits, uint8 (B, words / 8), into float32 (B, words), 1 where a document has the word."""

    def __init__(self, words: int, device: torch.device | str) -> None:
        self._words, self.device = words, torch.device(device)
        self._places = torch.arange(8, device=device, dtype=torch.uint8)

    def rewind(self) -> None:
        """Nothing is drawn."""

    def __call__(self, bits: torch.Tensor) -> torch.Tensor:
        """The rows, on the device of the bits."""
        return (self._on_host if bits.device.type == "cpu" else self._on_device)(bits)

    def _on_host(self, bits: torch.Tensor) -> torch.Tensor:
        has = np.unpackbits(bits.numpy(), axis=1, count=self._words, bitorder="little")
        return torch.from_numpy(has).to(torch.float32)

    def _on_device(self, bits: torch.Tensor) -> torch.Tensor:
        return ((bits[:, :, None] >> self._places) & 1).flatten(1)[:, : self._words].to(torch.float32)


def documents_in_order(split: Split, *, words: int, batch: int, device: torch.device | str) -> Iterator[Batch]:
    """All documents once, in order: float32 (B, words) and labels int64 (B,), the last B what remains.

    Raises UserError, before the first batch is asked for, for a batch under 1.
    """
    check_sizes(split, batch=batch, image_px=None)
    return prepared_in_order(split, batch=batch, device=torch.device(device), prepare=Unpacked(words, device))
