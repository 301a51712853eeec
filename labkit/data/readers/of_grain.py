"""Reader of Grain (PyGrain). Each worker process takes every n-th sample of the order, and makes batches of its own."""

from __future__ import annotations

import torch
from absl import flags
from grain import python as pygrain

from labkit.data.readers.grain_source import Decode, Files
from labkit.data.readers.reader import Part, Reader, Wanted


class GrainReader(Reader):
    """A Grain DataLoader over the files of a set."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        if not flags.FLAGS.is_parsed():  # Grain reads flags of the command line, if JAX is installed too
            flags.FLAGS.mark_as_parsed()
        files = Files(wanted)
        loader = pygrain.DataLoader(
            data_source=files,
            sampler=pygrain.IndexSampler(
                len(files), shard_options=pygrain.NoSharding(), shuffle=wanted.shuffled, seed=wanted.seed
            ),
            operations=[Decode(wanted), pygrain.Batch(wanted.batch, drop_remainder=True)],
            worker_count=wanted.workers,
        )
        self._parts = iter(loader)

    def _next_part(self) -> Part:
        values = next(self._parts)
        images, labels, read = (torch.from_numpy(values[name]) for name in ("image", "label", "read"))
        skipped = self.batch - int(read.sum())
        return Part(images[read], labels[read], skipped) if skipped else Part(images, labels)
