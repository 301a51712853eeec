"""Write the packed forms of a set from its JPEG files: WebDataset shards, TFRecord, and decoded pixels.

Packed files hold the images in a random order, because readers of packed forms shuffle within a buffer only.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import tarfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.content import what_is
from labkit.data.ilsvrc2012 import decoded, scaled_centre
from labkit.data.npy import ArrayWriter
from labkit.errors import DataError
from labkit.files import replacing, rewriting
from workbook.hardware.limits import usable_threads
from workbook.storage.forms import Sample

EDGE_PX = 256  # of an image in the cache form: the shorter side is scaled to it, and the centre is kept
IMAGES_FILE, LABELS_FILE = "images.npy", "labels.npy"

_DECODED_AT_ONCE = 256  # images, 50 MB


class Packed(NamedTuple):
    """One image as a packed file holds it."""

    number: int
    label: int
    data: bytes


def why_not_made(form: str) -> str | None:
    """Return why a form cannot be made here, as a sentence without a full stop; None if it can."""
    if form == "tfrecord" and find_spec("tensorflow") is None:
        return "TensorFlow writes the form tfrecord, and it is not installed: `pip install tensorflow-cpu`"
    return None


def read_sample(root: Path, sample: Sample) -> bytes:
    """Return the bytes of an image file. Raise DataError if the file can't be read."""
    try:
        return (root / sample.path).read_bytes()
    except OSError as error:
        raise DataError(
            f"{root / sample.path} can't be read ({error.strerror}); make it readable, or remove it and make the set "
            "again."
        ) from error


def pack_file(root: Path, path: Path, form: str, samples: Sequence[Sample], first: int) -> int:
    """Write one file of a packed form and return its number of images. Keep a file that is there: it is whole.

    `first` is the number of the first sample in the set. Raise DataError for an image file that can't be read.
    """
    if not path.exists():
        images = (Packed(first + n, sample.label, read_sample(root, sample)) for n, sample in enumerate(samples))
        with rewriting(path) as file:
            _WRITERS[form](file, images)
    return len(samples)


def _write_shard(file: BinaryIO, images: Iterable[Packed]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for image in images:
            for ending, content in (("jpg", image.data), ("cls", str(image.label).encode())):
                member = tarfile.TarInfo(f"{image.number:08d}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _write_tfrecord(file: BinaryIO, images: Iterable[Packed]) -> None:
    """Write records of tf.train.Example, with the names of TensorFlow's ImageNet scripts. Labels count from 0."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else TensorFlow logs its import
    import tensorflow as tf

    train = tf.train
    try:
        with tf.io.TFRecordWriter(file.name) as writer:
            for image in images:
                encoded = train.Feature(bytes_list=train.BytesList(value=[image.data]))
                label = train.Feature(int64_list=train.Int64List(value=[image.label]))
                features = train.Features(feature={"image/encoded": encoded, "image/class/label": label})
                writer.write(train.Example(features=features).SerializeToString(deterministic=True))
    except tf.errors.OpError as error:  # TensorFlow's own type for an error of the file system
        raise OSError(errno.EIO, error.message.rpartition("; ")[2], file.name) from error


_WRITERS: dict[str, Callable[[BinaryIO, Iterable[Packed]], None]] = {
    "shards": _write_shard,
    "tfrecord": _write_tfrecord,
}


def write_cache(folder: Path, root: Path, samples: Sequence[Sample], done: Callable[[int], None]) -> int:
    """Write the decoded pixels and labels of a set without images that can't be decoded. Return the number of images.

    Raise DataError for an image file that can't be read, and for a set without an image that can be decoded.
    """
    with (
        replacing(folder / IMAGES_FILE) as new_images,
        replacing(folder / LABELS_FILE) as new_labels,
        ArrayWriter(new_images, (3, EDGE_PX, EDGE_PX), np.uint8) as images,
        ArrayWriter(new_labels, (), np.int64) as labels,
        ThreadPoolExecutor(usable_threads()) as threads,  # Pillow decodes and scales without the GIL
    ):
        for start in range(0, len(samples), _DECODED_AT_ONCE):
            part = samples[start : start + _DECODED_AT_ONCE]
            for sample, pixels in zip(part, threads.map(functools.partial(_pixels, root), part), strict=True):
                if pixels is not None:
                    images.append(pixels[None])
                    labels.append(np.array([sample.label]))
            done(start + len(part))
        if not images.count:
            first = root / samples[0].path
            raise DataError(
                f"none of the {len(samples):,} images in {root} can be decoded: {first} is {what_is(first)}."
            )
        return images.count


def _pixels(root: Path, sample: Sample) -> NDArray[np.uint8] | None:
    """Return an image as the cache holds it, uint8 (3, 256, 256); None if it can't be decoded."""
    data = read_sample(root, sample)
    try:
        image = decoded(data)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - Pillow raises nearly anything for a damaged image
        return None
    return scaled_centre(image, short_px=EDGE_PX, edge_px=EDGE_PX)
