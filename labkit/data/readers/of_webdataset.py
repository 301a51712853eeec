"""Reader of WebDataset: each worker of a DataLoader streams its share of the shards, and decodes with Pillow.

Shards and samples are shuffled, the latter in a buffer. With more workers than shards, the rest of the workers idle.
Shards on a server are streamed by `labkit.data.stored.over_http` instead of WebDataset's curl.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from labkit.data.readers.of_torch import UNREADABLE, Endless, LoaderReader, Sample, collate, decoder
from labkit.data.readers.reader import Wanted
from labkit.data.stored.over_http import ServerError, open_file

BUFFER = 1000  # samples, as WebDataset's documentation has it


class WebDatasetReader(LoaderReader):
    """A WebDataset over the shards of a set."""

    def __init__(self, wanted: Wanted) -> None:
        import webdataset as wds

        samples = _remote_samples(wanted) if wanted.stored.addresses else _local_samples(wanted)
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


def _local_samples(wanted: Wanted) -> Any:
    import webdataset as wds

    shards = [str(file) for file in wanted.stored.files]
    shuffle: dict[str, Any] = {"shardshuffle": len(shards), "detshuffle": True, "seed": wanted.seed}
    return wds.WebDataset(
        shards,
        handler=wds.ignore_and_continue,  # it skips the rest of a damaged shard
        empty_check=False,
        **(shuffle if wanted.shuffled else {"shardshuffle": False}),
    )


def _remote_samples(wanted: Wanted) -> Any:
    """Return the stages of `wds.WebDataset`, with another one that opens shards."""
    import webdataset as wds
    from webdataset.tariterators import group_by_keys, tar_file_expander

    sizes = dict(wanted.stored.addresses)

    def opened(shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            with open_file(shard["url"], sizes[shard["url"]]) as stream:
                yield {**shard, "stream": stream}

    return wds.DataPipeline(
        wds.SimpleShardList(list(sizes)),
        wds.split_by_worker,
        wds.detshuffle(len(sizes), seed=wanted.seed) if wanted.shuffled else None,
        opened,
        wds.pipelinefilter(tar_file_expander)(handler=_skip_damage),
        wds.pipelinefilter(group_by_keys)(handler=_skip_damage),
    )


def _skip_damage(error: Exception) -> bool:
    """Let WebDataset skip what is damaged in a shard. A server or link that fails ends the reading."""
    if isinstance(error, ServerError):
        raise error
    return True
