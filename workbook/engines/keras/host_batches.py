"""Training batches as bytes in the host's memory, for frameworks with their own tensors. Needs no framework.

Samples come in the same order as from every other loader with the same seed. Each batch has newly allocated memory:
JAX on a CPU adopts arrays without a copy, and a copy to a GPU may still run while the next batch is gathered.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import Images, Split
from labkit.data.order import make_order
from labkit.errors import UserError

HostBatch: TypeAlias = tuple[Images, NDArray[np.signedinteger[Any]]]


class HostBatches:
    """Endless full batches: uint8 (B, 3, edge, edge) and int32 labels (B,). Raise UserError for a batch under 1."""

    kind = "host"

    def __init__(self, split: Split, *, batch: int, seed: int) -> None:
        if batch < 1:
            raise UserError(f"a batch of {batch} images was asked for; ask for at least 1.")
        self._split, self._batch, self._seed = split, batch, seed
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first batch."""
        self._order = make_order(len(self._split), seed=self._seed, batch=self._batch)

    def next_batch(self) -> HostBatch:
        """Return the next batch in new arrays."""
        chosen = self._order.take(self._batch)
        images = np.take(self._split.images, chosen, axis=0)
        return images, self._split.labels[chosen].astype(np.int32)
