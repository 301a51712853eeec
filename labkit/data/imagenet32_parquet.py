"""Read ImageNet32 in Hugging Face's form: Parquet files with `image` (a struct with `bytes`) and `label`, 0..999.

Hugging Face's labels are the classes in the order of their WordNet ids, and those of the batches are in another order.
A network that is trained on either form learns the same task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.data.content import what_is
from labkit.data.dataset import EDGE_PX, IMAGE_SHAPE, Chunks, Images, SplitName
from labkit.data.ilsvrc2012 import decoded
from labkit.errors import DataError, UserError

CLASSES = 1000
LAST_CLASSES = 900  # labels of ImageNet32 reach them; those of CIFAR-100 and Tiny ImageNet end far below
_FILE = re.compile(r"(train|val|validation)\b.*\.parquet")
_ROWS = 8192  # images decoded at once, 25 MB


def split_of(name: str) -> SplitName | None:
    """Return the split that a file's name begins with; None for another file."""
    match = _FILE.fullmatch(name)
    return None if match is None else "train" if match[1] == "train" else "val"


def read(files: Sequence[Path]) -> Chunks:
    """Yield the images of a split's files as uint8 (n, 3, 32, 32) and their labels int64 (n,), 0..999.

    Raise DataError for a file of another kind, other columns, images of another size or labels of another set. Raise
    UserError without pyarrow.
    """
    last = -1
    for file in files:
        try:
            for batch in _batches(file):
                labels = np.asarray(batch["label"])
                if labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < CLASSES:
                    raise DataError(f"{file} has labels such as {labels[0]!r}; ImageNet32 has 0..{CLASSES - 1}.")
                last = max(last, int(labels.max()))
                yield np.stack([_pixels(image["bytes"]) for image in batch["image"]]), labels.astype(np.int64)
        except UserError:
            raise
        except Exception as error:  # pyarrow and Pillow raise nearly anything for a damaged file
            raise DataError(f"{file} is {what_is(file)}, and can't be read as ImageNet32 ({error}).") from error
    if last < LAST_CLASSES:
        raise DataError(f"the labels in {files[0].parent} go up to {last}; those of ImageNet32 go up to {CLASSES - 1}.")


def _batches(file: Path) -> Iterator[dict[str, list[Any]]]:
    try:  # here, because only this form needs it
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError("pyarrow reads Parquet files, and it is not installed: pip install pyarrow.") from error

    table = ParquetFile(file)
    if not {"image", "label"} <= set(table.schema_arrow.names):
        names = ", ".join(table.schema_arrow.names)
        raise DataError(f"{file} has the columns {names}; ImageNet32 has `image` and `label`.")
    yield from (batch.to_pydict() for batch in table.iter_batches(_ROWS, columns=["image", "label"]))


def _pixels(data: bytes) -> Images:
    image = decoded(data)
    if image.size != IMAGE_SHAPE[1:]:
        raise ValueError(f"its images have {image.size[0]} x {image.size[1]} pixels, not {EDGE_PX} x {EDGE_PX}")
    return np.asarray(image).transpose(2, 0, 1)
