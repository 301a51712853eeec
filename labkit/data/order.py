"""The order in which a loader returns samples: a new permutation every epoch, and only full batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Shard(NamedTuple):
    """The position of a rank among several: of each `ranks` consecutive batches, the rank takes batch number `rank`."""

    rank: int = 0
    ranks: int = 1


WHOLE = Shard()


class EpochOrder:
    """Endless order of sample indices. A batch that begins with the last samples of an epoch continues in the next.

    The order of epoch e is a permutation seeded by (seed, e), so each sample occurs exactly once per epoch. If not
    `shuffled`, it is that of the samples.
    """

    def __init__(self, samples: int, *, seed: int, shuffled: bool = True) -> None:
        if samples < 1 or seed < 0:
            raise ValueError(f"{samples} samples, seed {seed}: samples must be at least 1, the seed at least 0")
        self._samples, self._seed, self._shuffled = samples, seed, shuffled
        self._epoch = self._position = 0
        self._permutation = self._permute()

    def _permute(self) -> NDArray[np.int64]:
        if not self._shuffled:
            return np.arange(self._samples)
        return np.random.default_rng((self._seed, self._epoch)).permutation(self._samples)

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the next `count` indices, int64 (count,)."""
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
    """One rank's part of an epoch order. All ranks together take the samples of one device with their total batch."""

    def __init__(self, order: EpochOrder, *, batch: int, shard: Shard) -> None:
        if not 0 <= shard.rank < shard.ranks or batch < 1:
            raise ValueError(f"{shard}, batch {batch}: the rank must be 0 to ranks - 1, the batch at least 1")
        self._order, self._batch, self._shard = order, batch, shard
        self._rest = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> NDArray[np.int64]:
        """Return the next `count` indices of this rank, int64 (count,)."""
        parts, have = [self._rest], len(self._rest)
        while have < count:
            together = self._order.take(self._batch * self._shard.ranks)
            parts.append(together[self._shard.rank * self._batch :][: self._batch])
            have += self._batch
        taken = np.concatenate(parts)
        self._rest = taken[count:]
        return taken[:count]


def make_order(
    samples: int, *, seed: int, batch: int, shard: Shard = WHOLE, shuffled: bool = True
) -> EpochOrder | ShardOrder:
    """Return the order of a loader, or the rank's part of the order if there are several ranks."""
    order = EpochOrder(samples, seed=seed, shuffled=shuffled)
    return order if shard.ranks == 1 else ShardOrder(order, batch=batch, shard=shard)
