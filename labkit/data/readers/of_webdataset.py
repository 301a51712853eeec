"""Reader of WebDataset: each worker of a DataLoader streams its share of the shards, and decodes with Pillow.

Shards and samples are shuffled, the latter in a buffer. With more workers than shards, the rest of the workers idle.
Shards on a server are streamed by `labkit.data.stored.over_http` instead of WebDataset's curl.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from labkit.data.readers.of_torch import UNREADABLE, Endless, Sample, collate, with_pillow
from labkit.data.readers.reader import Part, Reader, Wanted
from labkit.data.stored.over_http import ServerError, open_file

BUFFER = 1000  # samples, as WebDataset's documentation has it


def build(wanted: Wanted) -> Reader:
    """Return the reader `webdataset`."""
    return WebDatasetReader(wanted)


class WebDatasetReader(Reader):
    """A WebDataset over the shards of a set."""

    def __init__(self, wanted: Wanted) -> None:
        import webdataset as wds

        super().__init__(wanted)
        samples = _remote_samples(wanted) if wanted.stored.addresses else _local_samples(wanted)
        if wanted.shuffled:
            samples = samples.compose(wds.detshuffle(BUFFER, seed=wanted.seed))
        batches = samples.compose(wds.map(_Decode(wanted)), wds.batched(wanted.batch, collation_fn=_collate))
        self._parts = Endless(wanted, batches, batch_size=None, collate_fn=_same)

    def _next_part(self) -> Part:
        part: Part = next(self._parts)
        return part

    def close(self) -> None:
        """End the workers."""
        self._parts.close()


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
    return wds.DataPipeline(
        wds.SimpleShardList(list(sizes)),
        wds.split_by_worker,
        wds.detshuffle(len(sizes), seed=wanted.seed) if wanted.shuffled else None,
        _Open(sizes),
        wds.pipelinefilter(tar_file_expander)(handler=_skip_damage),
        wds.pipelinefilter(group_by_keys)(handler=_skip_damage),
    )


class _Open:
    """Opener of the shards on a server. `sizes` are the bytes of each address."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            with open_file(shard["url"], self._sizes[shard["url"]]) as stream:
                yield {**shard, "stream": stream}


def _skip_damage(error: Exception) -> bool:
    """Let WebDataset skip what is damaged in a shard. A server or link that fails ends the reading."""
    if isinstance(error, ServerError):
        raise error
    return True


class _Decode:
    """Decoder of a sample `{"jpg": bytes, "cls": bytes}`. An unreadable one is wrapped, since `map` drops None."""

    def __init__(self, wanted: Wanted) -> None:
        self._decode = with_pillow(wanted)

    def __call__(self, sample: dict[str, Any]) -> tuple[Sample]:
        try:
            return ((self._decode(sample["jpg"]), int(sample["cls"])),)
        except (KeyError, *UNREADABLE):
            return (None,)


def _collate(samples: list[tuple[Sample]]) -> Part:
    return collate([sample for (sample,) in samples])


def _same(part: Part) -> Part:
    return part
