"""The order in which a loader hands out samples: every epoch a new permutation, every batch full."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Shard(NamedTuple):
    """Which of several ranks takes samples: of each `ranks` batches in a row, the one with its number."""

    rank: int = 0
    ranks: int = 1


WHOLE = Shard()


class EpochOrder:
    """Sample indices in batches of one size; the rest of an epoch begins the batch that the next epoch completes.

    Epoch e's order is a permutation seeded by (seed, e), so each sample occurs exactly once per epoch.
    """

    def __init__(self, samples: int, *, seed: int) -> None:
        if samples < 1 or seed < 0:
            raise ValueError(f"no order of {samples} samples with seed {seed}")
        self._samples, self._seed = samples, seed
        self._epoch = self._position = 0
        self._permutation = self._permute()

    def _permute(self) -> NDArray[np.int64]:
        return np.random.default_rng((self._seed, self._epoch)).permutation(self._samples)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` indices, int64 (count,)."""
        parts = []
        while count:
            part = self._permutation[self._position : self._position + count]
            parts.append(part)
            count -= len(part)
            self._position += len(part)
            if self._position == self._samples:
                self._epoch, self._position = self._epoch + 1, 0
                self._permutation = self._permute()
        return np.concatenate(parts)


class ShardOrder:
    """What one rank takes of an epoch's order. All ranks together take what one device with their total batch would."""

    def __init__(self, order: EpochOrder, *, batch: int, shard: Shard) -> None:
        if not 0 <= shard.rank < shard.ranks or batch < 1:
            raise ValueError(f"no part {shard} of batches of {batch}")
        self._order, self._batch, self._shard = order, batch, shard
        self._rest = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count` indices of this rank, int64 (count,)."""
        parts, have = [self._rest], len(self._rest)
        while have < count:
            together = self._order.take(self._batch * self._shard.ranks)
            parts.append(together[self._shard.rank * self._batch :][: self._batch])
            have += self._batch
        taken = np.concatenate(parts)
        self._rest = taken[count:]
        return taken[:count]


def make_order(samples: int, *, seed: int, batch: int, shard: Shard = WHOLE) -> EpochOrder | ShardOrder:
    """The order of a loader; a rank's part of it where there are several."""
    order = EpochOrder(samples, seed=seed)
    return order if shard.ranks == 1 else ShardOrder(order, batch=batch, shard=shard)
