"""Write `.npy` files of a length not known beforehand, with digest and statistics, and read arrays of `.npz` files."""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from labkit.data.dataset import Images, Levels
from labkit.data.restricted_pickle import Refused


def read_member(archive: zipfile.ZipFile, name: str, most_bytes: int) -> NDArray[Any]:
    """Return an array of plain numbers from a part of an `.npz` archive, read-only.

    NumPy makes room for all that a header promises. Here a part must hold exactly that, and at most `most_bytes`.
    Raise Refused for any other part, KeyError without it, and what `zipfile` and NumPy raise for damaged ones.
    """
    part = archive.getinfo(name)
    if part.file_size > most_bytes:
        raise Refused(f"its {name} has {part.file_size:,} bytes")
    with archive.open(part) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise Refused(f"its {name} is in another version of NumPy's format")
        shape, is_fortran, dtype = readers[version](stream)
        if dtype.kind not in "biuf":
            raise Refused(f"its {name} is an array of {dtype}, not of plain numbers")
        content = stream.read()
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise Refused(f"its {name} has {len(content):,} bytes, and its header says {shape} of {dtype}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C")


class ArrayWriter:
    """Writer that appends rows of shape `row` to an `.npy` file. Leaving the `with` block writes the number of rows.

    The header is written twice, with the same length: NumPy pads headers so that the first dimension can grow.
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
        """Return the SHA-256 of the bytes in C order, the type and the shape of the rows written so far."""
        contents = self._contents.copy()
        contents.update(f"{self._dtype.str} {(self.count, *self._row)}".encode())
        return contents.hexdigest()

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
    """Mean and standard deviation of each channel of uint8 images, exact for any division into chunks."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, 256), dtype=np.int64)  # pixels of each level

    def add(self, images: Images) -> None:
        """Add images (n, 3, height, width)."""
        for channel in range(3):
            self._counts[channel] += np.bincount(images[:, channel].ravel(), minlength=256)

    def mean_and_std(self) -> tuple[Levels, Levels]:
        """Return the means and the population standard deviations, both per channel in units of 0..255."""
        levels = np.arange(256)
        pixels = int(self._counts[0].sum())
        # Python's integers avoid rounding errors.
        totals, squares = (self._counts @ levels).tolist(), (self._counts @ levels**2).tolist()
        red, green, blue = ((pixels * s - t * t) ** 0.5 / pixels for t, s in zip(totals, squares, strict=True))
        return (totals[0] / pixels, totals[1] / pixels, totals[2] / pixels), (red, green, blue)
