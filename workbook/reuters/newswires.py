"""Read the Reuters newswires from Keras's `reuters.npz`, as bags of words like those of Keras's examples.

The file holds `x`, an array of 11,228 lists of word numbers (1 is the most frequent word), and `y`, their topics 0..45.
The processing follows `keras.datasets.reuters.load_data(num_words=10000)`. A generator with the seed 113 shuffles the
newswires, and the first 80 % are for training. Each newswire begins with a 1, its word numbers are raised by 3, and
raised numbers of 10,000 or more become a 2. As in the example `reuters_mlp`, only the set of numbers is kept:
one bit for each of 10,000 words, set if the document has the word; 1,250 bytes.

`x` is a pickle. The restricted reader accepts only lists of whole numbers.
"""

from __future__ import annotations

import hashlib
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.data.content import what_is
from labkit.data.dataset import Chunks, Images, Labels, Levels, Source, SplitName
from labkit.data.npy import read_member
from labkit.data.restricted_pickle import Refused, load_lists
from labkit.errors import DataError, UserError
from labkit.files import users_path

WORDS = 10_000
CLASSES = 46
AS_IT_IS: tuple[Levels, Levels] = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))  # mean and std that change nothing


def pack(documents: NDArray[np.signedinteger[Any]], words: NDArray[np.signedinteger[Any]], count: int) -> Images:
    """Return bits uint8 (count, 1250), lowest bit first, in which document `documents[i]` has the word `words[i]`."""
    has = np.zeros((count, WORDS), dtype=np.bool_)
    has[documents, words] = True
    return np.packbits(has, axis=1, bitorder="little")


NAME = "reuters"
VERSION = 1  # part of the cache token: raise it with any change to the bags of words
PUBLISHED_DOCUMENTS = 11_228
SHUFFLE_SEED = 113
TEST_SHARE = 0.2
START, UNKNOWN, RAISED_BY = 1, 2, 3
LARGEST_BYTES = 2**26  # limit of an unpacked part of the archive; Keras's file has some 10 MB
EXPECTED = "Keras's reuters.npz, with `x` (lists of word numbers) and `y` (topics 0 to 45)"


def _read(file: Path) -> tuple[list[list[int]], NDArray[np.int64]]:
    """Return the checked lists and topics of a file. Raise DataError for any other file."""
    try:
        with zipfile.ZipFile(file) as archive:
            for part in archive.infolist():
                if part.file_size > LARGEST_BYTES:
                    raise Refused(f"its {part.filename} has {part.file_size:,} bytes")
            with archive.open("x.npy") as stream:
                if np.lib.format.read_magic(stream) != (1, 0):
                    raise Refused("its 'x' is in another version of NumPy's format")
                _shape, _is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
                if dtype != np.dtype(object):
                    raise Refused(f"its 'x' is an array of {dtype}, not of lists")
                lists = load_lists(stream, size=archive.getinfo("x.npy").file_size)
            topics = read_member(archive, "y.npy", LARGEST_BYTES)
        if topics.dtype.kind not in "iu" or topics.ndim != 1:
            raise Refused(f"its 'y' is an array of {topics.dtype} and shape {topics.shape}, not a list of numbers")
    except Refused as refusal:
        raise DataError(f"{file} is refused: {refusal}; give {EXPECTED}. Nothing of it was executed.") from refusal
    except KeyError as error:
        raise DataError(f"{file} is {what_is(file)}; give {EXPECTED}.") from error
    except OSError as error:
        raise DataError(f"{file} can't be read ({error.strerror or error}).") from error
    except Exception as error:  # zipfile, zlib, pickle and NumPy raise nearly anything for a damaged archive
        kind = what_is(file)
        state = f"{kind}, truncated or damaged ({error})" if kind.startswith(("an .npz", "a zip archive wi")) else kind
        raise DataError(f"{file} is {state}; give {EXPECTED}.") from error
    if len(topics) != len(lists) or len(lists) < 2:
        raise DataError(
            f"{file} has {len(lists):,} newswires and {len(topics):,} topics; the counts must be equal, and 2 or more."
        )
    if topics.min() < 0 or topics.max() >= CLASSES:
        raise DataError(f"{file} has topics {topics.min()}..{topics.max()}; 0..{CLASSES - 1} are expected.")
    if min(map(min, filter(None, lists)), default=0) < 0:
        raise DataError(f"{file} has words with numbers below 0; give {EXPECTED}.")
    return lists, topics.astype(np.int64)


def split_as_keras(lists: list[list[int]], topics: NDArray[np.int64], split: SplitName) -> tuple[Images, Labels]:
    """Return bits uint8 (n, 1250) and labels int64 (n,) of the newswires in Keras's training or test part."""
    order = np.arange(len(lists))
    np.random.RandomState(SHUFFLE_SEED).shuffle(order)  # the legacy generator, whose stream is frozen (NEP 19)
    border = int(len(lists) * (1 - TEST_SHARE))
    chosen = order[:border] if split == "train" else order[border:]
    lengths = [len(lists[number]) for number in chosen]
    words = np.fromiter((min(word, WORDS) for number in chosen for word in lists[number]), np.int64, sum(lengths))
    words += RAISED_BY
    words[words >= WORDS] = UNKNOWN
    documents = np.repeat(np.arange(len(chosen)), lengths)
    starts = np.full(len(chosen), START)
    bits = pack(np.concatenate([np.arange(len(chosen)), documents]), np.concatenate([starts, words]), len(chosen))
    return bits, topics[chosen]


def describe(train: int, val: int) -> str:
    """Return one sentence that describes a file with these totals."""
    extent = "as many as published" if train + val == PUBLISHED_DOCUMENTS else "not the published 11,228"
    return (
        f"Reuters newswires (Keras's reuters.npz): {train:,} training and {val:,} test documents, {extent}, of "
        f"{CLASSES} topics over {WORDS:,} words."
    )


def source(path: str | Path) -> Source:
    """Return the cache's source of the file. Its token depends on the file's path, size and modification time.

    Raise UserError if the file is missing or cannot be read.
    """
    file = users_path(path)
    try:
        if not file.is_file():
            raise UserError(f"REUTERS={path} is no file; name {EXPECTED}.")
        file = file.resolve()
        status = file.stat()
    except OSError as error:
        raise UserError(f"REUTERS={path} can't be read: {error}. Name a file that you can read.") from error
    stamp = f"{VERSION} {file} {status.st_size} {status.st_mtime_ns}"
    read = cache(lambda: _read(file))

    def chunks(split: SplitName) -> Chunks:
        yield split_as_keras(*read(), split)

    token = hashlib.sha256(stamp.encode()).hexdigest()[:16]
    return Source(NAME, token, CLASSES, chunks, describe, normalisation=AS_IT_IS, words=WORDS)
