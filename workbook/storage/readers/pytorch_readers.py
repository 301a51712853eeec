"""The readers of PyTorch's DataLoader, whose workers decode with Pillow: of files, and of WebDataset's shards.

The sampler never ends, so workers do not wait at the end of an epoch. WebDataset's workers stream their share of the
shards. Shards and samples are shuffled, the latter in a buffer. With more workers than shards, the rest of the workers
idle.
"""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from labkit.data.order import make_order
from labkit.errors import LabkitError
from labkit.torchvision_import import import_torchvision
from workbook.storage.readers.reader import PATIENCE_S, Part, Reader, Wanted

# What Pillow and torchvision raise for a file that is damaged, truncated or no image, and the operating system for a
# file that cannot be read.
UNREADABLE = (OSError, RuntimeError, SyntaxError, ValueError)
_POLL_S = 5  # after which a waiting DataLoader looks for dead workers
Decode: TypeAlias = Callable[[bytes], torch.Tensor]
Sample: TypeAlias = tuple[torch.Tensor, int] | None  # None: unreadable


def decoder(wanted: Wanted) -> Decode:
    """Return the decoder of bytes to uint8 (3, px, px), by Pillow."""
    import_torchvision()
    from PIL import Image
    from torchvision.transforms import v2

    px = wanted.image_px
    if wanted.train:
        crops = [v2.RandomResizedCrop(px, antialias=True), v2.RandomHorizontalFlip()]
    else:
        crops = [v2.Resize(px * 256 // 224, antialias=True), v2.CenterCrop(px)]
    prepare = v2.Compose([*crops, v2.PILToTensor()])
    return lambda data: prepare(Image.open(io.BytesIO(data)).convert("RGB"))


class Files(Dataset[Sample]):
    """The files of a set, decoded one by one."""

    def __init__(self, wanted: Wanted, decode: Decode) -> None:
        stored = wanted.stored
        self._paths = np.array([str(stored.folder / name) for name, _, _ in stored.samples])  # no list: forks share it
        self._labels = np.array([label for _, label, _ in stored.samples], dtype=np.int64)
        self._decode = decode

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Sample:
        try:
            with open(self._paths[index], "rb") as file:  # noqa: PTH123 - a Path per file would cost time
                return self._decode(file.read()), int(self._labels[index])
        except UNREADABLE:
            return None


class _Batches(Sampler[list[int]]):
    """Endless batches of sample numbers."""

    def __init__(self, wanted: Wanted, samples: int) -> None:
        self._wanted, self._samples = wanted, samples

    def __iter__(self) -> Iterator[list[int]]:
        wanted, batch = self._wanted, self._wanted.batch
        order = make_order(self._samples, seed=wanted.seed, batch=batch, shard=wanted.shard, shuffled=wanted.shuffled)
        while True:
            yield order.take(batch).tolist()


def collate(samples: list[Sample]) -> Part:
    """Return the readable samples as a part."""
    read = [sample for sample in samples if sample is not None]
    if not read:
        return Part(torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.int64), len(samples))
    # The images are stacked into shared memory in a worker, so that the caller's process copies nothing.
    images, labels = torch.utils.data.default_collate(read)
    return Part(images, labels, len(samples) - len(read))


class LoaderReader(Reader):
    """A DataLoader, by default one over the JPEG files of a set."""

    def __init__(self, wanted: Wanted, parts: Endless | None = None) -> None:
        super().__init__(wanted)
        if parts is None:
            files = Files(wanted, decoder(wanted))
            parts = Endless(wanted, files, batch_sampler=_Batches(wanted, len(files)), collate_fn=collate)
        self._parts = parts

    def close(self) -> None:
        """End the workers."""
        self._parts.close()


class Endless:
    """The parts of a DataLoader, epoch after epoch."""

    def __init__(self, wanted: Wanted, dataset: Any, **options: Any) -> None:
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            **options,
            num_workers=wanted.workers,
            persistent_workers=wanted.workers > 0,
            timeout=_POLL_S if wanted.workers else 0,
            pin_memory=wanted.pinned,
            generator=torch.Generator().manual_seed(wanted.seed),  # seeds the random crops of the workers
        )
        self._epoch: Iterator[Any] = iter(())
        self._start()

    def _start(self) -> None:
        assert self._loader is not None, "the reader is closed"
        before = signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL
        self._epoch = iter(self._loader)
        if threading.current_thread() is threading.main_thread():
            # PyTorch's handler raises wherever the program happens to be when a worker dies. Without it, the death is
            # found within _POLL_S of waiting for a batch.
            signal.signal(signal.SIGCHLD, before)

    def __next__(self) -> Any:
        deadline, ended = time.monotonic() + PATIENCE_S, False
        while True:
            try:
                return next(self._epoch)
            except StopIteration:
                if ended:
                    raise LabkitError("an epoch has no sample that can be read") from None
                ended = True
                self._start()
            except (ConnectionError, EOFError) as error:  # while the batch was taken from a worker
                raise LabkitError(f"a worker of the reader was killed ({error})") from error
            except RuntimeError as error:
                if "timed out" not in str(error) or time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        """End the workers and the pinning thread.

        After an error its traceback refers to them. The garbage collector then ends them later, and waits 5 s for each.
        """
        if shut_down := getattr(self._epoch, "_shutdown_workers", None):
            shut_down()
        self._epoch, self._loader = iter(()), None


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
