"""Readers of PyTorch's DataLoader: its workers decode with Pillow or torchvision, or read bytes for nvJPEG.

The sampler never ends, so workers do not wait at the end of an epoch. Parquet files are read by row groups: each worker
takes its share of the groups in a new order per epoch, and shuffles the rows of a group.
"""

from __future__ import annotations

import io
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from labkit.data.order import make_order
from labkit.data.readers.reader import PATIENCE_S, Part, Reader, Wanted
from labkit.errors import LabkitError
from labkit.torchvision_import import import_torchvision

# What Pillow and torchvision raise for a file that is damaged, truncated or no image, and the operating system for a
# file that cannot be read.
UNREADABLE = (OSError, RuntimeError, SyntaxError, ValueError)
_POLL_S = 5  # after which a waiting DataLoader looks for dead workers
Decode: TypeAlias = Callable[[bytes], torch.Tensor]
Sample: TypeAlias = tuple[torch.Tensor, int] | None  # None: unreadable


def decoder(wanted: Wanted) -> Decode:
    """Return the decoder of bytes to uint8 (3, px, px): Pillow or, for `torch_decode`, torchvision's of JPEG."""
    import_torchvision()
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    if wanted.name == "torch_decode":
        prepare = v2.Compose(_transforms(wanted))
        return lambda data: prepare(decode_jpeg(_as_bytes(data), mode=ImageReadMode.RGB))
    from_pillow = v2.Compose([*_transforms(wanted), v2.PILToTensor()])
    return lambda data: from_pillow(Image.open(io.BytesIO(data)).convert("RGB"))


def _transforms(wanted: Wanted) -> list[Any]:
    from torchvision.transforms import v2

    px = wanted.image_px
    if wanted.train:
        return [v2.RandomResizedCrop(px, antialias=True), v2.RandomHorizontalFlip()]
    return [v2.Resize(px * 256 // 224, antialias=True), v2.CenterCrop(px)]


def _as_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)  # a copy, because torch requires writable memory


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


class RowGroups(IterableDataset[Sample]):
    """The rows of Parquet files, decoded in the worker that reads their row group."""

    def __init__(self, wanted: Wanted, decode: Decode) -> None:
        import pyarrow.parquet as pq

        self._wanted, self._decode, self._epoch, self._groups = wanted, decode, -1, []
        for file in wanted.stored.files:
            with suppress(OSError, ValueError):  # a damaged file
                self._groups += [(file, group) for group in range(pq.ParquetFile(file).num_row_groups)]

    def __iter__(self) -> Iterator[Sample]:
        import pyarrow.parquet as pq

        self._epoch += 1  # each worker has its own copy, and is asked once per epoch
        chance, worker = np.random.default_rng((self._wanted.seed, self._epoch)), get_worker_info()
        shuffled = self._wanted.shuffled
        order = chance.permutation(len(self._groups)) if shuffled else np.arange(len(self._groups))
        for chosen in order[worker.id :: worker.num_workers] if worker else order:
            path, group = self._groups[chosen]
            with pq.ParquetFile(path) as file:
                rows = file.read_row_group(group, columns=["image", "label"])
            images, labels = rows["image"], rows["label"].to_numpy()
            for row in chance.permutation(len(labels)) if shuffled else range(len(labels)):
                try:
                    yield self._decode(images[int(row)].as_py()), int(labels[row])
                except UNREADABLE:
                    yield None


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
    """A DataLoader, by default one that decodes a set."""

    def __init__(self, wanted: Wanted, parts: Endless | None = None) -> None:
        super().__init__(wanted)
        self._parts = parts or of_set(wanted, decoder(wanted))

    def close(self) -> None:
        """End the workers."""
        self._parts.close()


class Endless:
    """The parts of a DataLoader, epoch after epoch."""

    def __init__(self, wanted: Wanted, dataset: Any, *, collate_fn: Any = collate, **batches: Any) -> None:
        self._loader: DataLoader[Any] | None = DataLoader(
            dataset,
            **batches,
            num_workers=wanted.workers,
            persistent_workers=wanted.workers > 0,
            timeout=_POLL_S if wanted.workers else 0,
            pin_memory=wanted.pinned and wanted.name != "torch_nvjpeg",
            collate_fn=collate_fn,
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
                    raise LabkitError("an epoch has no sample that can be read: make the set anew") from None
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


def of_set(wanted: Wanted, decode: Decode, collate_fn: Callable[[list[Sample]], Any] = collate) -> Endless:
    """Return a DataLoader over the files or row groups of a set."""
    if wanted.stored.form == "jpeg":
        files = Files(wanted, decode)
        return Endless(wanted, files, batch_sampler=_Batches(wanted, len(files)), collate_fn=collate_fn)
    return Endless(wanted, RowGroups(wanted, decode), batch_size=wanted.batch, collate_fn=collate_fn)


class NvJpegReader(LoaderReader):
    """Workers read bytes. The GPU decodes a batch at once, and crops and flips image by image."""

    on_device = True

    def __init__(self, wanted: Wanted) -> None:
        import_torchvision()
        from torchvision.transforms import v2

        super().__init__(wanted, of_set(wanted, _as_bytes, list))
        self._prepare = v2.Compose(_transforms(wanted))

    def _next_part(self) -> Part:
        samples: list[Sample] = next(self._parts)
        read = [sample for sample in samples if sample is not None]
        images = self._decode([data for data, _ in read])
        prepared = [None if image is None else self._prepare(image) for image in images]
        good: list[Sample] = [
            (image, label) for image, (_, label) in zip(prepared, read, strict=True) if image is not None
        ]
        part = collate([*good, *[None] * (len(samples) - len(good))])
        return part._replace(labels=part.labels.to(self.wanted.device, non_blocking=True))

    def _decode(self, data: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return the decoded images; None for a damaged one. nvJPEG does not say which image of a batch is damaged."""
        from torchvision.io import ImageReadMode, decode_jpeg

        try:
            return list(decode_jpeg(data, mode=ImageReadMode.RGB, device=self.wanted.device)) if data else []
        except RuntimeError:
            if len(data) > 1:
                return [image for one in data for image in self._decode([one])]
            return [None]
