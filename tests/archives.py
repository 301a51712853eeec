"""Small ImageNet32 archives for tests, in every format in which the real archive exists."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

Batch = dict[str, Any]


PER_BATCH, VAL = 12, 15


def batches(per_batch: int = PER_BATCH, val: int = VAL, seed: int = 0) -> Iterator[tuple[str, Batch]]:
    """Yield names and contents of the eleven batches, equal for every format. Training batch k has `per_batch` + k."""
    rng = np.random.default_rng(seed)
    for number in range(1, 12):
        count = val if number == 11 else per_batch + number
        labels = rng.integers(1, 1001, size=count)
        labels[:1] = 1  # the lowest label: a wrong offset makes it invalid
        batch: Batch = {"data": rng.integers(0, 256, size=(count, 3072), dtype=np.uint8), "labels": labels}
        if number <= 10:
            batch["mean"] = batch["data"].mean(axis=0)
        yield ("val_data" if number == 11 else f"train_data_batch_{number}"), batch


def write_pickled(folder: Path, *, dumps: Callable[[Batch], bytes] = pickle.dumps, **sizes: int) -> Path:
    """Write pickled batches with labels as a list of int, as published. `dumps` pickles a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in batches(**sizes):
        (folder / name).write_bytes(dumps({**batch, "labels": batch["labels"].tolist()}))
    return folder


def write_npz(folder: Path, *, compressed: bool = False, **sizes: int) -> Path:
    """Write `.npz` batches with labels as an array. Equal `sizes` give the contents of `write_pickled`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, batch in batches(**sizes):
        (np.savez_compressed if compressed else np.savez)(folder / f"{name}.npz", **batch)
    return folder


class _Python2Pickler(pickle._Pickler):
    """Pickler that writes text and bytes as Python 2 wrote `str`, so both load as bytes."""

    write: Any
    memoize: Any
    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def _save_string(self, text: str | bytes) -> None:
        raw = text.encode("latin-1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + len(raw).to_bytes(4, "little") + raw)
        self.memoize(text)

    dispatch[bytes] = _save_string
    dispatch[str] = _save_string


def python2_dumps(batch: Batch) -> bytes:
    """Return the pickle (protocol 2) that Python 2 with NumPy 1 would have written."""
    stream = io.BytesIO()
    _Python2Pickler(stream, protocol=2).dump(batch)
    return re.sub(rb"numpy\._core", b"numpy.core", stream.getvalue())


CLASS_FOLDERS = Path(__file__).with_name("imagenet_classes.txt").read_text().split()  # the WordNet ids, sorted


def write_parquet(folder: Path, *, edge_px: int = 32, classes: int = 1000) -> Path:
    """Write ImageNet32 as Hugging Face has it, with the contents of `batches`; images of another size are black."""
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    (folder / "data").mkdir(parents=True, exist_ok=True)
    for number, (name, batch) in enumerate(batches()):
        encoded = []
        for row in batch["data"]:
            pixels = (
                row.reshape(3, 32, 32).transpose(1, 2, 0) if edge_px == 32 else np.zeros((edge_px, edge_px, 3), "u1")
            )
            Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
            encoded.append({"bytes": stream.getvalue(), "path": None})
        split = "validation" if name == "val_data" else "train"
        table = pyarrow.table({"image": encoded, "label": (batch["labels"] - 1) % classes})
        pyarrow.parquet.write_table(table, folder / "data" / f"{split}-{number:05}-of-00011.parquet")
    return folder


def write_jpegs(folder: Path, classes: Sequence[str], name: str = "{}.JPEG", *, each: int = 2, px: int = 0) -> Path:
    """Write small JPEG files of different sizes, or of `px` pixels, into folders of classes.

    `{c}` in `name` is the class, and `{}` the number of the image among all.
    """
    from PIL import Image

    for number in range(len(classes) * each):
        label = classes[number % len(classes)]
        (folder / label).mkdir(parents=True, exist_ok=True)
        size = (px, px) if px else (8 + number % 7, 9)
        Image.new("RGB", size, (number % 256, 0, 0)).save(folder / label / name.format(number, c=label), "JPEG")
    return folder


def write_validation_set(folder: Path, *, per_class: int = 2) -> Path:
    """Write a folder `val` of 1,000 class folders of small JPEGs in the colours, sizes and modes that ImageNet has.

    No two images are equal. Some are grey, some CMYK, some narrow, and one is larger than the crop.
    """
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(len(CLASS_FOLDERS) * per_class):
        name, rank = CLASS_FOLDERS[number % 1000], number // 1000
        levels = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
        size = (300, 401) if number == 5 else tuple(rng.integers(8, 60, 2).tolist())
        image = Image.fromarray(levels).resize(size, Image.Resampling.BICUBIC)
        image = image.convert({3: "L", 7: "CMYK"}.get(number % 10, "RGB"))
        (folder / "val" / name).mkdir(parents=True, exist_ok=True)
        image.save(folder / "val" / name / f"ILSVRC2012_val_{rank:08}.JPEG", quality=90)
    return folder
