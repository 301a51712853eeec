"""Reader of WebDataset: each worker of a DataLoader streams its share of the shards, and decodes with Pillow.

Shards and samples are shuffled, the latter in a buffer. With more workers than shards, the rest of the workers idle.
"""

from __future__ import annotations

from typing import Any

from workbook.storage.readers.of_torch import UNREADABLE, Endless, LoaderReader, Sample, collate, decoder
from workbook.storage.readers.reader import Wanted

BUFFER = 1000  # samples, as WebDataset's documentation has it


class WebDatasetReader(LoaderReader):
    """A WebDataset over the shards of a set."""

    def __init__(self, wanted: Wanted) -> None:
        import webdataset as wds

        shards = [str(file) for file in wanted.stored.files]
        shuffle: dict[str, Any] = {"shardshuffle": len(shards), "detshuffle": True, "seed": wanted.seed}
        samples = wds.WebDataset(
            shards,
            handler=wds.ignore_and_continue,  # it skips the rest of a damaged shard
            empty_check=False,
            **(shuffle if wanted.shuffled else {"shardshuffle": False}),
        )
        if wanted.shuffled:
            samples = samples.compose(wds.detshuffle(BUFFER, seed=wanted.seed))
        decode = decoder(wanted)

        def decoded(sample: dict[str, bytes]) -> tuple[Sample]:
            """Return the image and class of `jpg` and `cls`, wrapped: `map` drops None, which is an unreadable one."""
            try:
                return ((decode(sample["jpg"]), int(sample["cls"])),)
            except (KeyError, *UNREADABLE):
                return (None,)

        batched = wds.batched(wanted.batch, collation_fn=lambda samples: collate([sample for (sample,) in samples]))
        parts = samples.compose(wds.map(decoded), batched)
        super().__init__(wanted, Endless(wanted, parts, batch_size=None, collate_fn=lambda part: part))
