"""Writes `.npy` files whose length is not known beforehand, with a digest and channel statistics on the way."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import Images

_DIGEST_BYTES = 1 << 24


def _seal(contents: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """The digest of an array from the running hash of its bytes: type and shape belong to it."""
    contents = contents.copy()
    contents.update(f"{dtype.str} {shape}".encode())
    return str(contents.hexdigest())


def array_digest(array: NDArray[Any]) -> str:
    """sha256 of an array's bytes in C order, its type and its shape; the same as `ArrayWriter.digest` gives."""
    contents = hashlib.sha256()
    rows = max(1, _DIGEST_BYTES * len(array) // max(1, array.nbytes))
    for start in range(0, len(array), rows):
        contents.update(np.ascontiguousarray(array[start : start + rows]).data)
    return _seal(contents, array.dtype, array.shape)


class ArrayWriter:
    """Appends rows of shape `row` to an `.npy` file; on leaving the `with` block its header says how many there are.

    The header is written twice, to the same length: NumPy pads it so that the first dimension can grow.
    """

    def __init__(self, path: Path, row: tuple[int, ...], dtype: type[np.generic]) -> None:
        self._row = row
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._contents = hashlib.sha256()
        self._file = path.open("wb")
        self.count = 0
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.count, *self._row)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, rows: NDArray[Any]) -> None:
        """Write `rows` (n, *row), converted to the file's type."""
        assert rows.shape[1:] == self._row
        data = np.ascontiguousarray(rows, dtype=self._dtype).data
        self._contents.update(data)
        self._file.write(data)
        self.count += len(rows)

    def digest(self) -> str:
        """As `array_digest` of the rows written so far."""
        return _seal(self._contents, self._dtype, (self.count, *self._row))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._write_header()
                self._file.flush()
                os.fsync(self._file.fileno())


class ChannelMoments:
    """Mean and standard deviation of each channel of uint8 images, exact whatever the chunks they come in."""

    def __init__(self) -> None:
        self._pixels = 0
        self._sums = [0, 0, 0]
        self._squares = [0, 0, 0]

    def add(self, images: Images) -> None:
        """Take in images (n, 3, height, width)."""
        for start in range(0, len(images), 256):  # 256 images' channel fits into a core's cache as float64
            part = images[start : start + 256]
            self._pixels += part[:, 0].size
            for channel in range(3):
                levels = part[:, channel].astype(np.float64).ravel()
                # Whole numbers under 2**53: the order of summation cannot change them.
                self._sums[channel] += int(levels.sum())
                self._squares[channel] += int(levels @ levels)

    def mean_and_std(self) -> tuple[list[float], list[float]]:
        """Per channel, in units of 0..255; the deviation is the population's."""
        means = [total / self._pixels for total in self._sums]
        # n * sum(x^2) - sum(x)^2 in Python's integers: no cancellation.
        spreads = [
            (self._pixels * square - total * total) ** 0.5 / self._pixels
            for square, total in zip(self._squares, self._sums, strict=True)
        ]
        return means, spreads
