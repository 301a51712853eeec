"""Unpack bags of words on a device: from packed bits to rows of 0 and 1 (needs torch).

A resident loader feeds the bits as it feeds images. The 14 MB of bits always fit into the device's memory.
"""

from __future__ import annotations

import numpy as np
import torch


class Unpacked:
    """Converter from bits, uint8 (B, words / 8), to float32 (B, words) with 1 where a document has the word."""

    def __init__(self, words: int, device: torch.device | str) -> None:
        self._words, self.device = words, torch.device(device)
        self._places = torch.arange(8, device=device, dtype=torch.uint8)

    def rewind(self) -> None:
        """Do nothing, since nothing is drawn at random."""

    def __call__(self, bits: torch.Tensor) -> torch.Tensor:
        """Return the unpacked rows, float32 (B, words), on the device of `bits`."""
        return (self._on_host if bits.device.type == "cpu" else self._on_device)(bits)

    def _on_host(self, bits: torch.Tensor) -> torch.Tensor:
        has = np.unpackbits(bits.numpy(), axis=1, count=self._words, bitorder="little")
        return torch.from_numpy(has).to(torch.float32)

    def _on_device(self, bits: torch.Tensor) -> torch.Tensor:
        return ((bits[:, :, None] >> self._places) & 1).flatten(1)[:, : self._words].to(torch.float32)
