"""Reader of WebDataset: each worker of a DataLoader streams its share of the shards, and decodes with Pillow.

Shards and samples are shuffled, the latter in a buffer. With more workers than shards, the rest of the workers idle.
"""

from __future__ import annotations

from typing import Any

from labkit.data.readers.of_torch import UNREADABLE, Endless, Sample, collate, with_pillow
from labkit.data.readers.reader import Part, Reader, Wanted

BUFFER = 1000  # samples, as WebDataset's documentation has it


def build(wanted: Wanted) -> Reader:
    """Return the reader `webdataset`."""
    return WebDatasetReader(wanted)


class WebDatasetReader(Reader):
    """A WebDataset over the shards of a set."""

    def __init__(self, wanted: Wanted) -> None:
        import webdataset as wds

        super().__init__(wanted)
        shards = [str(file) for file in wanted.stored.files]
        # The handler skips the rest of a shard that is cut off. `cut_shards` counts such shards.
        handler = wds.ignore_and_continue if wanted.skips else wds.reraise_exception
        shuffle: dict[str, Any] = {"shardshuffle": len(shards), "detshuffle": True, "seed": wanted.seed}
        samples = wds.WebDataset(
            shards, handler=handler, empty_check=False, **(shuffle if wanted.shuffled else {"shardshuffle": False})
        )
        if wanted.shuffled:
            samples = samples.compose(wds.detshuffle(BUFFER, seed=wanted.seed))
        batches = samples.map(_Decode(wanted)).batched(wanted.batch, collation_fn=_collate)
        self._parts = Endless(wanted, batches, batch_size=None, collate_fn=_same)

    def _next_part(self) -> Part:
        part: Part = next(self._parts)
        return part

    def close(self) -> None:
        """End the workers."""
        self._parts.close()


class _Decode:
    """Decoder of a sample `{"jpg": bytes, "cls": bytes}`. An unreadable one is wrapped, since `map` drops None."""

    def __init__(self, wanted: Wanted) -> None:
        self._decode, self._skips = with_pillow(wanted), wanted.skips

    def __call__(self, sample: dict[str, Any]) -> tuple[Sample]:
        try:
            return ((self._decode(sample["jpg"]), int(sample["cls"])),)
        except (KeyError, *UNREADABLE):
            if not self._skips:
                raise
            return (None,)


def _collate(samples: list[tuple[Sample]]) -> Part:
    return collate([sample for (sample,) in samples])


def _same(part: Part) -> Part:
    return part
