"""Documents as bags of words: a drawn document depends only on its number, and loaders treat documents like images."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from labkit import data
from labkit.data import DataSet
from labkit.data.loaders import ResidentLoader, in_order
from labkit.data.order import Shard
from labkit.errors import UserError
from workbook.reuters import open_documents
from workbook.reuters import synthetic as reuters_shaped
from workbook.reuters.newswires import CLASSES, WORDS
from workbook.workloads._inputs import Unpacked

# SHA-256 of documents 0..999 and their labels, seed 0, version 1. Every machine must make these bytes.
PINNED = {
    "train": "0017fe21a6762c48610116d831fac19198ed18a04ea4a81fad02291e2ed6d054",
    "val": "93f0f37d2a9c788150ffb6e269eaa8f673be187e692c1be3181d504a0546a22b",
}


def words_of(bits: np.ndarray) -> list[set[int]]:
    """Return the words of each document, read bit by bit."""
    return [{8 * place + bit for place, byte in enumerate(row) for bit in range(8) if byte >> bit & 1} for row in bits]


@pytest.fixture
def documents() -> DataSet:
    return open_documents(train_documents=300, val_documents=70)


# ---- drawn documents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val"])
def test_version_1_has_the_same_bytes_on_every_machine(split: str) -> None:
    bits, labels = reuters_shaped.generate(0, split, 0, 1000)  # type: ignore[arg-type]
    assert reuters_shaped.VERSION == 1
    assert hashlib.sha256(bits.tobytes() + labels.astype("<i2").tobytes()).hexdigest() == PINNED[split]
    assert not np.array_equal(reuters_shaped.generate(1, split, 0, 1000)[0], bits)  # type: ignore[arg-type]


def test_classes_words_and_lengths_have_the_specified_frequencies() -> None:
    bits, labels = reuters_shaped.generate(0, "train", 0, reuters_shaped.TRAIN_DOCUMENTS)
    wanted = np.array(reuters_shaped.PER_CLASS)
    assert (len(wanted), wanted.sum()) == (CLASSES, reuters_shaped.TRAIN_DOCUMENTS)
    counts = np.bincount(labels, minlength=CLASSES)
    assert np.all(np.abs(counts - wanted) < 5 * np.sqrt(wanted)), "five standard deviations of a count"
    has = np.unpackbits(bits, axis=1, bitorder="little")
    of_all = has.sum(axis=0)
    share = 1 - reuters_shaped.OWN_Q / 64
    weights = 1 / np.arange(1, WORDS + 1) / np.sum(1 / np.arange(1, WORDS + 1))
    # Zipf's law in the order that classes share. The power is the chance that a document of mean length lacks a word.
    for rank in (10, 100, 1000):
        near = slice(rank - rank // 10, rank + rank // 10 + 1)
        expected = len(bits) * (1 - (1 - share * weights[near]) ** 145.5)
        assert of_all[near].mean() == pytest.approx(expected.mean(), rel=0.25)
    distinct = has.sum(axis=1)
    assert distinct.min() >= 13 and distinct.max() <= reuters_shaped.LONGEST


def test_a_class_has_its_own_words() -> None:
    bits, labels = reuters_shaped.generate(0, "train", 0, 4000)
    has = np.unpackbits(bits, axis=1, bitorder="little").astype(float)
    for label in (3, 4):  # the two most frequent classes
        here, elsewhere = has[labels == label].mean(axis=0), has[labels != label].mean(axis=0)
        favourite = np.argmax(here - elsewhere)
        assert here[favourite] > 0.5 > 0.1 > elsewhere[favourite]


# ---- the cache ------------------------------------------------------------------------------------------------------


def test_documents_are_drawn_once_and_found_by_their_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    made = open_documents(train_documents=20, val_documents=10)
    assert (made.name, made.classes, made.words) == ("reuters_shaped", CLASSES, WORDS)
    assert (len(made.train), len(made.val), made.train.images.shape) == (20, 10, (20, WORDS // 8))
    assert "20 training and 10 validation documents" in made.description and "not of Reuters" in made.description
    monkeypatch.setattr(reuters_shaped, "generate", None)
    again = open_documents(train_documents=20, val_documents=10)
    assert again.checksum == made.checksum
    opened = data.open_by_checksum("reuters_shaped", made.checksum)
    assert opened.words == WORDS and np.array_equal(opened.val.images, made.val.images)
    with pytest.raises(UserError, match="number of validation documents is 0"):
        open_documents(val_documents=0)


# ---- loading --------------------------------------------------------------------------------------------------------


def loader_of(documents: DataSet, **options: Any) -> ResidentLoader:
    return ResidentLoader(documents.train, prepare=Unpacked(WORDS, "cpu"), **options)


def test_a_row_is_one_where_the_document_has_the_word(documents: DataSet) -> None:
    bits = documents.val.images[:5]
    rows = Unpacked(WORDS, "cpu")(torch.from_numpy(np.array(bits)))
    assert rows.dtype == torch.float32 and rows.shape == (5, WORDS)
    assert [set(row.nonzero().flatten().tolist()) for row in rows] == words_of(bits)
    assert set(rows.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("words", [WORDS, 13])
def test_a_gpus_operators_make_the_same_rows(words: int) -> None:
    bits = torch.randint(0, 256, (7, -(-words // 8)), dtype=torch.uint8)
    unpack = Unpacked(words, "cpu")
    assert torch.equal(unpack._on_device(bits), unpack._on_host(bits))


def test_every_document_comes_once_an_epoch_in_full_batches_and_in_a_new_order(documents: DataSet) -> None:
    loader = loader_of(documents, batch=75, seed=1)
    epochs = [[loader.next_batch() for _ in range(4)] for _ in range(2)]
    expected = sorted(tuple(sorted(words)) for words in words_of(documents.train.images))
    for batches in epochs:
        assert [(tuple(rows.shape), tuple(labels.shape)) for rows, labels in batches] == [((75, WORDS), (75,))] * 4
        rows = torch.cat([batch_rows for batch_rows, _ in batches])
        assert sorted(tuple(row.nonzero().flatten().tolist()) for row in rows) == expected
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    loader.rewind()
    assert torch.equal(loader.next_batch()[0], epochs[0][0][0])


def test_labels_stay_with_their_documents(documents: DataSet) -> None:
    of = {row.tobytes(): int(label) for row, label in zip(documents.train.images, documents.train.labels, strict=True)}
    rows, labels = loader_of(documents, batch=300).next_batch()
    packed = np.packbits(rows.numpy().astype(bool), axis=1, bitorder="little")
    assert [of[row.tobytes()] for row in packed] == labels.tolist()


def test_ranks_together_take_the_batches_of_one_device(documents: DataSet) -> None:
    whole = loader_of(documents, batch=20)
    parts = [loader_of(documents, batch=10, shard=Shard(rank, 2)) for rank in range(2)]
    for _ in range(5):
        rows, labels = zip(*(part.next_batch() for part in parts), strict=True)
        expected = whole.next_batch()
        assert torch.equal(torch.cat(rows), expected[0]) and torch.equal(torch.cat(labels), expected[1])


def test_validation_goes_through_all_documents_in_order(documents: DataSet) -> None:
    batches = list(in_order(documents.val, batch=32, prepare=Unpacked(WORDS, "cpu")))
    assert [len(labels) for _, labels in batches] == [32, 32, 6]
    rows = torch.cat([batch_rows for batch_rows, _ in batches]).numpy().astype(bool)
    assert np.array_equal(np.packbits(rows, axis=1, bitorder="little"), documents.val.images)
    assert torch.cat([labels for _, labels in batches]).tolist() == documents.val.labels.tolist()
