"""In `synthetic32` an image depends only on (seed, split, index), and classes can be learned with effort."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import data
from labkit.data import synthetic
from labkit.errors import UserError

# SHA-256 of images 0..999 and their labels, seed 0, version 1. Every machine must make these bytes.
PINNED = {
    "train": "b30348aa3154bf61693a325e8bd90143132823486307c715eff5e11375901e81",
    "val": "e606b67ab3db1dc2f18f65d6a50d2272b9717c850c7a66389ecf08a0abc02e45",
}


@pytest.mark.parametrize("split", ["train", "val"])
def test_version_1_has_the_same_bytes_on_every_machine(split: str) -> None:
    images, labels = synthetic.generate(0, split, 0, 1000)  # type: ignore[arg-type]
    assert synthetic.SYNTHETIC_VERSION == 1
    assert hashlib.sha256(images.tobytes() + labels.astype("<i2").tobytes()).hexdigest() == PINNED[split]


@settings(max_examples=25, deadline=None)
@given(start=st.integers(0, 600), count=st.integers(0, 300), before=st.integers(0, 300), after=st.integers(0, 300))
def test_an_image_does_not_depend_on_other_images(start: int, count: int, before: int, after: int) -> None:
    images, labels = synthetic.generate(3, "train", start, start + count)
    first = max(0, start - before)
    more_images, more_labels = synthetic.generate(3, "train", first, start + count + after)
    assert np.array_equal(images, more_images[start - first :][:count])
    assert np.array_equal(labels, more_labels[start - first :][:count])


def test_seed_split_and_index_all_matter() -> None:
    made = [synthetic.generate(*which)[0] for which in ((0, "train", 0, 300), (1, "train", 0, 300), (0, "val", 0, 300))]
    images = np.concatenate(made).reshape(900, -1)
    assert len(np.unique(images, axis=0)) == 900


def test_ten_classes_are_learnable_by_nearest_mean_but_far_from_solved() -> None:
    """Chance is 10 %. Shifts hide the patterns from a template, so a good accuracy needs more than nearest mean."""

    def ten(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        kept = []
        for start in range(0, count, 20_000):
            images, labels = synthetic.generate(0, split, start, start + 20_000)  # type: ignore[arg-type]
            kept.append((images[labels < 10], labels[labels < 10]))
        images, labels = (np.concatenate(part) for part in zip(*kept, strict=True))
        pixels = images.reshape(len(images), -1).astype(np.float32)
        return pixels - pixels.mean(axis=1, keepdims=True), labels

    train, train_labels = ten("train", 80_000)
    val, val_labels = ten("val", 40_000)
    means = np.stack([train[train_labels == label].mean(axis=0) for label in range(10)])
    nearest = ((means**2).sum(axis=1) - 2 * val @ means.T).argmin(axis=1)
    assert 0.3 < (nearest == val_labels).mean() < 0.7


def test_invalid_seeds_are_refused() -> None:
    for seed in (-1, 2**64):
        with pytest.raises(UserError):
            synthetic.generate(seed, "train", 0, 1)
    assert len(synthetic.generate(2**64 - 1, "val", 5, 5)[0]) == 0


def test_the_data_set_holds_the_generated_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    data_set = data.open_data(None, train_images=9000, val_images=30, seed=5)
    images, labels = synthetic.generate(5, "train", 0, 9000)
    assert np.array_equal(data_set.train.images, images) and np.array_equal(data_set.train.labels, labels)
    assert (data_set.name, data_set.classes, len(data_set.val)) == ("synthetic32", 1000, 30)
    assert all(fact in data_set.description for fact in ("version 1", "seed 5", "not ImageNet"))
    assert data.open_data("synthetic32", train_images=9000, val_images=30, seed=5).checksum == data_set.checksum
