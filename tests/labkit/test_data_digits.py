"""The data set `digits` holds every handwritten digit of scikit-learn once, at 32x32 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit import data
from labkit.data import digits
from labkit.errors import UserError


def test_every_digit_is_in_one_split_once_and_undistorted() -> None:
    from sklearn.datasets import load_digits

    original, original_labels = load_digits(return_X_y=True)
    images, labels = (
        np.concatenate(part)
        for part in zip(digits.images_and_labels("train"), digits.images_and_labels("val"), strict=True)
    )
    assert images.shape == (1797, 3, 32, 32) and images.dtype == np.uint8
    assert images.min() == 0 and images.max() == 255
    for channel in range(3):
        small = images[:, channel, ::4, ::4].reshape(1797, 64)
        assert np.array_equal(images[:, channel], small.reshape(-1, 8, 8).repeat(4, axis=1).repeat(4, axis=2))
        back = np.rint(small / 255 * 16)
        assert sorted(zip(map(tuple, back), labels, strict=True)) == sorted(
            zip(map(tuple, original), original_labels, strict=True)
        )


def test_the_split_is_1500_and_297_and_follows_the_seed() -> None:
    train, val = (digits.images_and_labels(split)[1] for split in ("train", "val"))
    assert (len(train), len(val)) == (1500, 297)
    assert np.array_equal(train, digits.images_and_labels("train", seed=0)[1])
    assert not np.array_equal(train, digits.images_and_labels("train", seed=1)[1])
    assert np.bincount(val).min() >= 15  # each of the ten digits is in validation
    with pytest.raises(UserError):
        digits.images_and_labels("train", seed=-1)


def test_the_data_set_holds_the_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    every, few = data.open_data("digits", train_images=10**6), data.open_data("digits", train_images=100, val_images=20)
    assert (len(every.train), len(every.val), every.classes, every.name) == (1500, 297, 10, "digits")
    assert (len(few.train), len(few.val)) == (100, 20)
    assert np.array_equal(few.train.images, every.train.images[:100])
    assert all(fact in every.description for fact in ("1,500", "297", "not ImageNet"))
    assert every.mean[0] == every.mean[2] and 0 < every.std[0] < 128
    assert np.array_equal(every.val.labels, digits.images_and_labels("val")[1])
