"""Readers: the loaders that people use, over a data set on the disk in the forms that people use.

    reader       reads and decodes with                                      on which form
    torch_pil    PyTorch's DataLoader, Pillow and torchvision's transforms   jpeg
    tf_data      tf.data, which decodes only the rows of the crop            jpeg, tfrecord
    webdataset   WebDataset in the workers of a DataLoader, and Pillow       shards
    mapped       NumPy, from decoded images in a memory-mapped file          cache
    resident     decoded images in the device's memory: the bound            cache

`workers` are processes (DataLoader) or threads (tf.data, `mapped`). 0 is one thread, the caller's; tf.data then takes
the number that it chooses. Training images get a random resized crop and a random flip. Decoded images have one size,
so `mapped` and `resident` crop them at a random place, and do not resize.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from labkit.data.order import WHOLE, Shard
from labkit.errors import one_of
from workbook.trials.rules import Rule, given
from workbook.trials.trial import measured

if TYPE_CHECKING:
    from workbook.storage import StoredSet
    from workbook.storage.readers.reader import Reader

READERS = measured("reader")[1:]
READS: dict[str, tuple[str, ...]] = {
    "torch_pil": ("jpeg",),
    "tf_data": ("jpeg", "tfrecord"),
    "webdataset": ("shards",),
    **dict.fromkeys(("mapped", "resident"), ("cache",)),
}
CACHE_PX = 256  # edge of the images of the form `cache`
ORDERS = ("shuffled", "as stored")
SHARING = ("torch_pil", "mapped", "resident")  # readers that can share an order
_CLASSES = {  # the module of each reader, and its class there
    "torch_pil": ("pytorch_readers", "LoaderReader"),
    "tf_data": ("tensorflow_reader", "TensorFlowReader"),
    "webdataset": ("pytorch_readers", "WebDatasetReader"),
    "mapped": ("cache_readers", "MappedReader"),
    "resident": ("cache_readers", "ResidentReader"),
}
_PACKAGES = {  # the module that a reader imports, and how it is installed
    "tf_data": ("tensorflow", "pip install tensorflow-cpu"),
    "webdataset": ("webdataset", "pip install webdataset"),
}


def lacking(reader: str) -> str | None:
    """Return the package that a reader needs and that is not installed, and the command; None if all are here."""
    package, install = _PACKAGES.get(reader, ("", ""))
    missing = package and find_spec(package) is None
    return f"{package}, which is not installed: `{install}`" if missing else None


# fmt: off
RULES = given(lambda t: t.form != "embedded", (
    Rule("never", lambda t: t.form not in (forms := READS.get(t.reader, ("nothing",))) and " and ".join(forms),
        "the reader {reader} reads {value}, not {form}"),
    Rule("here", lambda t: lacking(t.reader), "the reader {reader} needs {value}"),
    Rule("never", lambda t: t.reader == "resident" and t.workers, "the reader resident has no workers: give workers=0"),
    Rule("never", lambda t: t.form == "cache" and t.image_px > CACHE_PX,
        f"images of the form cache have {CACHE_PX} pixels a side, and image_px is {{image_px}}"),
    Rule("version", lambda t: t.reader_order == "shared" and t.reader not in SHARING,
        "the reader {reader} cannot share its order with other readers"),
))
# fmt: on


def open_reader(
    name: str,
    stored: StoredSet,
    *,
    batch: int,
    image_px: int,
    workers: int,
    seed: int,
    device: str,
    order: str = "shuffled",
    train: bool = True,
    shard: Shard = WHOLE,
) -> Reader:
    """Return a reader of endless full batches: `next_batch()` gives uint8 (B, 3, px, px) and int64 (B,).

    Each sample comes once per epoch, in a new order per epoch, which `seed` decides. `order="as stored"` keeps the
    order of the files. Samples that cannot be read are skipped and counted. With `train=False` the shorter side is
    resized to 256/224 of `image_px`, and the centre is cropped. Batches are on the host (pinned if the device is a
    GPU), or on the device (`reader.on_device`).

    Readers with the same seed and different shards share one order, in which each image comes once.

    `RULES` say which trials have a reader.
    """
    one_of("order", order, ORDERS)
    from workbook.storage.readers.reader import Wanted

    wanted = Wanted(
        name=name,
        stored=stored,
        batch=batch,
        image_px=image_px,
        workers=workers,
        seed=seed,
        device=device,
        shuffled=order == "shuffled",
        train=train,
        shard=shard,
    )
    module, kind = _CLASSES[name]
    build: Callable[[Wanted], Reader] = getattr(importlib.import_module(f"{__name__}.{module}"), kind)
    return build(wanted)


assert set(READS) == set(READERS) == set(_CLASSES)
