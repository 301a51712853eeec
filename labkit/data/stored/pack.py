"""Write the packed forms of a set from its JPEG files: WebDataset shards, TFRecord, and decoded pixels.

Packed files hold the images in a random order, because readers of packed forms shuffle within a buffer only. TFRecord's
framing is written here: each process would need seconds to import TensorFlow, and the framing is short.
"""

from __future__ import annotations

import functools
import io
import struct
import tarfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.data.ilsvrc2012 import decoded, scaled_centre
from labkit.data.npy import ArrayWriter
from labkit.data.stored.forms import Sample
from labkit.errors import DataError
from labkit.hardware.cpu_limits import usable_threads
from labkit.places import replacing, rewriting

EDGE_PX = 256  # of an image in the cache form: the shorter side is scaled to it, and the centre is kept
IMAGES_FILE, LABELS_FILE = "images.npy", "labels.npy"

_DECODED_AT_ONCE = 256  # images, 50 MB
_CRC_BLOCK = 1024
_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, reflected


class Packed(NamedTuple):
    """One image as a packed file holds it."""

    number: int
    label: int
    data: bytes


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
    for image in images:
        content = _example(image)
        length = struct.pack("<Q", len(content))
        file.writelines((length, _masked_crc(length), content, _masked_crc(content)))


def _example(image: Packed) -> bytes:
    """Return a serialised tf.train.Example: Example.features.feature is a map of names to a Feature (feature.proto)."""
    encoded = _message(1, _message(1, image.data))  # Feature.bytes_list.value
    label = _message(3, _message(1, _varint(image.label)))  # Feature.int64_list.value, packed
    entries = (("image/encoded", encoded), ("image/class/label", label))
    return _message(1, b"".join(_message(1, _message(1, name.encode()) + _message(2, of)) for name, of in entries))


def _message(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protocol buffer."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc_tables() -> NDArray[np.uint32]:
    """Return what each value of the byte at each place of a block adds to the block's CRC, uint32 (_CRC_BLOCK, 256)."""
    step = np.arange(256, dtype=np.uint32)
    for _bit in range(8):
        step = np.where(step & 1, step >> 1 ^ np.uint32(_CASTAGNOLI), step >> 1)
    tables = np.empty((_CRC_BLOCK, 256), np.uint32)
    tables[-1] = step
    for place in range(_CRC_BLOCK - 2, -1, -1):  # one more byte follows
        tables[place] = step[tables[place + 1] & 0xFF] ^ tables[place + 1] >> 8
    return tables


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of at least 4 bytes, 110 KB in half a millisecond.

    A CRC is linear: that of a block is the XOR of what each byte adds by itself. The first four bytes carry the initial
    value, and zeros before them add nothing.
    """
    blocks = np.zeros((-(-len(data) // _CRC_BLOCK), _CRC_BLOCK), np.uint8)
    flat = blocks.reshape(-1)[blocks.size - len(data) :]
    flat[:] = np.frombuffer(data, np.uint8)
    flat[:4] ^= 0xFF
    tables = _crc_tables()
    own = np.bitwise_xor.reduce(tables[np.arange(_CRC_BLOCK), blocks], axis=1)
    first, second, third, fourth = tables[:4].tolist()
    crc = 0
    for block in own.tolist():  # the CRC so far enters a block through its first four bytes
        crc = block ^ first[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ fourth[crc >> 24]
    return crc ^ 0xFFFFFFFF


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
            raise DataError(f"none of the {len(samples):,} images in {root} can be decoded; give a folder of others.")
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
