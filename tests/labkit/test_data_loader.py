"""Loaders return each sample once per epoch in full batches, agree with each other, and augment by moving pixels."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.data.dataset import Split
from labkit.data.order import EpochOrder, Shard, make_order
from labkit.errors import UserError
from tests.prepared import loading

torch = pytest.importorskip("torch")

from labkit.data.augment import Augment, Preparation  # noqa: E402 - they need torch
from labkit.data.loaders import (  # noqa: E402  # noqa: E402
    Loader,
    ResidentLoader,
    StreamingLoader,
    in_order,
    make_loader,
    resident_bytes,
)

KINDS = [ResidentLoader, StreamingLoader]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
Make = Callable[..., Loader]


def numbered(samples: int) -> Split:
    """Return a split where sample i has label i, and every pixel of its image is i % 256."""
    labels = np.arange(samples, dtype=np.int16)
    images = np.broadcast_to((labels % 256).astype(np.uint8)[:, None, None, None], (samples, 3, 32, 32)).copy()
    images.flags.writeable = False
    return Split(images, labels)


def patterned(samples: int) -> Split:
    """Return a split of equal images, in which neighbouring pixels differ and no pixel is 0."""
    image = np.arange(3 * 32 * 32).reshape(1, 3, 32, 32) % 251 + 1
    return Split(np.repeat(image.astype(np.uint8), samples, axis=0), np.zeros(samples, dtype=np.int16))


def scattered(samples: int) -> Split:
    """Return a split where sample i has label i and its own random pixels."""
    images = np.random.default_rng(1).integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    return Split(images, np.arange(samples, dtype=np.int16))


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Loader] = []

    def make(kind: type[Loader], split: Split, **options: Any) -> Loader:
        made.append(loading(kind, split, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


@given(samples=st.integers(1, 50), batch=st.integers(1, 120), seed=st.integers(0, 2**32))
def test_every_sample_comes_exactly_once_per_epoch_in_full_batches(samples: int, batch: int, seed: int) -> None:
    order = EpochOrder(samples, seed=seed)
    taken: list[int] = []
    while len(taken) < 4 * samples:
        part = order.take(batch)
        assert len(part) == batch
        taken += part.tolist()
    for epoch in range(4):
        assert sorted(taken[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    order = EpochOrder(100, seed=0)
    orders = [order.take(100), order.take(100), EpochOrder(100, seed=1).take(100), np.arange(100)]
    assert len(np.unique(orders, axis=0)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_normalised_images_with_their_labels(kind: type[Loader], make: Make) -> None:
    mean, std = (1.0, 2.0, 3.0), (4.0, 5.0, 6.0)
    loader = make(kind, numbered(300), batch=64, mean=mean, std=std)
    kept = [loader.next_batch() for _ in range(6)]  # kept to notice a reused buffer
    for images, labels in kept:
        assert images.shape == (64, 3, 32, 32) and images.dtype == torch.float32 and images.is_contiguous()
        assert labels.shape == (64,) and labels.dtype == torch.int64
        for channel in range(3):
            expected = ((labels % 256).float() - mean[channel]) / std[channel]
            assert torch.equal(images[:, channel], expected[:, None, None].expand(64, 32, 32))


@pytest.mark.parametrize("augment", [Augment(), Augment(flip=True, crop=True)])
def test_both_kinds_return_the_same_batches(augment: Augment, make: Make) -> None:
    both = [make(kind, numbered(45), batch=20, seed=3, augment=augment) for kind in KINDS]
    for _ in range(7):
        (images, labels), (other_images, other_labels) = (loader.next_batch() for loader in both)
        assert torch.equal(labels, other_labels) and torch.equal(images, other_images)


def test_a_crop_shifts_by_up_to_four_pixels_and_shows_black_beyond_the_edge(make: Make) -> None:
    images, _ = make(ResidentLoader, patterned(2000), batch=2000, augment=Augment(crop=True)).next_batch()
    padded = torch.nn.functional.pad(torch.from_numpy(patterned(1).images[0]).float(), (4, 4, 4, 4))
    counts = [
        int((images == padded[:, y : y + 32, x : x + 32]).all(dim=(1, 2, 3)).sum()) for y in range(9) for x in range(9)
    ]
    assert sum(counts) == 2000  # each image is one of the 81 windows
    assert min(counts) >= 5 and max(counts) <= 60  # 25 expected of each


def prepared_slowly(
    image: Any, *, flipped: bool, right: int, down: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Any:
    """Prepare one uint8 image (3, H, W) pixel by pixel. A pixel whose source is outside the image is black."""
    ready = np.empty(image.shape, dtype=np.float32)
    _, height, width = image.shape
    for c, y, x in np.ndindex(*image.shape):
        from_y, from_x = y + down, (width - 1 - x if flipped else x) + right
        inside = 0 <= from_y < height and 0 <= from_x < width
        level = np.float32(image[c, from_y, from_x] if inside else 0)
        ready[c, y, x] = (level - np.float32(mean[c])) / np.float32(max(std[c], 1.0))
    return torch.from_numpy(ready)


@pytest.mark.parametrize("path", ["_on_host", "_on_device"])  # the CPU's path, and the operators that a GPU runs
@given(
    batch=st.integers(1, 6),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    flip=st.booleans(),
    crop=st.booleans(),
    pad=st.integers(0, 5),
    std=st.tuples(*[st.floats(0.0, 120.0, width=32)] * 3),
    seed=st.integers(0, 2**32),
    memory_format=st.sampled_from(["contiguous", "channels_last"]),
)
@settings(deadline=None)
def test_prepared_images_equal_those_of_a_slow_loop(
    path: str, batch: int, height: int, width: int, flip: bool, crop: bool, pad: int, std: Any, seed: int,
    memory_format: Any,
) -> None:  # fmt: skip
    images = np.random.default_rng(seed).integers(0, 256, (batch, 3, height, width), dtype=np.uint8)
    given_images = torch.from_numpy(images.copy())
    mean = (120.5, 3.0, 250.0)
    prepare = Preparation(
        device=torch.device("cpu"), mean=mean, std=std, seed=seed, augment=Augment(flip, crop, pad), image_px=None,
        memory_format=memory_format,
    )  # fmt: skip
    ready = getattr(prepare, path)(given_images, prepare._draw(batch, given_images.device))

    draws = torch.Generator().manual_seed(seed)  # committed records depend on the order of the draws
    flips = (torch.rand(batch, 1, generator=draws) < 0.5) if flip else torch.zeros(batch, 1)
    shifts = torch.randint(0, 2 * pad + 1, (2, batch, 1), generator=draws) - pad if crop else torch.zeros(2, batch, 1)
    for i in range(batch):
        right, down = (int(shift) for shift in shifts[:, i, 0])
        slowly = prepared_slowly(images[i], flipped=bool(flips[i]), right=right, down=down, mean=mean, std=std)
        assert torch.equal(ready[i], slowly)
    assert ready.dtype == torch.float32 and ready.is_contiguous(memory_format=FORMATS[memory_format])
    assert np.array_equal(given_images, images), "the given images are unchanged"


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_format_changes_the_layout_of_pixels_and_not_their_values(kind: type[Loader], make: Make) -> None:
    options = {"batch": 5, "seed": 2, "augment": Augment(flip=True, crop=True)}
    for image_px in (None, 32, 75):
        plain = make(kind, scattered(9), image_px=image_px, **options).next_batch()[0]
        images = make(kind, scattered(9), image_px=image_px, memory_format="channels_last", **options).next_batch()[0]
        assert images.is_contiguous(memory_format=torch.channels_last) and torch.equal(images, plain)


def test_bilinear_scaling_weighs_the_four_nearest_pixels(make: Make) -> None:
    plain = make(ResidentLoader, patterned(1), batch=1).next_batch()[0][0].numpy()
    large = make(ResidentLoader, patterned(1), batch=1, image_px=40).next_batch()[0][0].numpy()
    for y, x in np.ndindex(40, 40):
        from_y, from_x = (max((at + 0.5) * 32 / 40 - 0.5, 0.0) for at in (y, x))
        top, left = int(from_y), int(from_x)
        bottom, right = min(top + 1, 31), min(left + 1, 31)
        upper = plain[:, top, left] * (1 - from_x + left) + plain[:, top, right] * (from_x - left)
        lower = plain[:, bottom, left] * (1 - from_x + left) + plain[:, bottom, right] * (from_x - left)
        assert np.allclose(large[:, y, x], upper * (1 - from_y + top) + lower * (from_y - top), rtol=1e-4)


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_preparing_takes_less_memory_than_the_batch_it_makes(memory_format: Any, make: Make) -> None:
    options = {"augment": Augment(flip=True, crop=True), "memory_format": memory_format}
    loader = make(ResidentLoader, patterned(512), batch=512, **options)
    tracemalloc.start()  # counts NumPy's arrays; the batch itself is torch's
    images, _ = loader.next_batch()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < peak_bytes < images.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_a_rewound_loader_returns_the_same_batches_bit_for_bit(kind: type[Loader], make: Make) -> None:
    loader = make(kind, scattered(45), batch=20, seed=5, augment=Augment(flip=True, crop=True))
    first = [loader.next_batch() for _ in range(7)]  # over the ends of three epochs
    for handed_out in (7, 0, 1, 3):
        loader.rewind()
        for images, labels in first[:handed_out]:
            again, its_labels = loader.next_batch()
            assert torch.equal(images, again) and torch.equal(labels, its_labels)


@given(samples=st.integers(1, 40), batch=st.integers(1, 50))
@settings(deadline=None)
def test_a_split_comes_once_in_order_with_its_last_short_batch(samples: int, batch: int) -> None:
    split = numbered(samples)
    unchanged = Preparation(device=torch.device("cpu"), mean=(0.0,) * 3, std=(1.0,) * 3)
    batches = list(in_order(split, batch=batch, prepare=unchanged))
    sizes = [len(labels) for _, labels in batches]
    assert sizes[:-1] == [batch] * (len(batches) - 1) and 1 <= sizes[-1] <= batch and sum(sizes) == samples
    labels = torch.cat([labels for _, labels in batches])
    assert labels.dtype == torch.int64 and labels.tolist() == list(range(samples))
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.from_numpy(split.images.copy()).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_in_order_are_prepared_like_the_loaders(dtype: Any, make: Make) -> None:
    split = scattered(3)
    options: dict[str, Any] = {"mean": (120.0, 110.0, 100.0), "std": (60.0, 61.0, 62.0), "image_px": 64}
    images_of_loader, labels_of_loader = make(ResidentLoader, split, batch=3, **options).next_batch()
    prepare = Preparation(device=torch.device("cpu"), memory_format="channels_last", **options)
    [(images, labels)] = in_order(split, batch=8, prepare=prepare, dtype=dtype)
    assert torch.equal(images[labels_of_loader], images_of_loader.to(dtype)) and labels.tolist() == [0, 1, 2]
    assert images.dtype == dtype and images.is_contiguous(memory_format=torch.channels_last)


def test_augmentation_follows_the_seed(make: Make) -> None:
    augment = Augment(flip=True, crop=True)
    first, same, other = (
        make(ResidentLoader, patterned(20), batch=20, augment=augment, seed=seed).next_batch()[0] for seed in (1, 1, 2)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_invalid_options_are_refused() -> None:
    refused: list[dict[str, Any]] = [
        {"batch": 0},
        {"batch": 1, "image_px": 31},
        {"batch": 1, "memory_format": "channels_first"},
    ]
    plain = {"device": "cpu", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    for options in refused:
        with pytest.raises(UserError):
            make_loader(numbered(3), **plain, **options)


@pytest.mark.parametrize(("share", "expected"), [(0.51, "streaming"), (0.5, "resident"), (None, "resident")])
def test_the_kind_of_loader_depends_on_the_free_memory(share: float | None, expected: str) -> None:
    split = numbered(100)
    assert resident_bytes(split) == 100 * (3072 + 8)
    free_bytes = None if share is None else round(resident_bytes(split) / share)
    loader = make_loader(
        split, batch=8, device="cpu", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), seed=0, free_bytes=free_bytes
    )
    assert loader.kind == expected and len(loader.next_batch()[1]) == 8
    loader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_mapped_set_is_not_copied_on_a_cpu(kind: type[Loader], tmp_path: Path, make: Make) -> None:
    file = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.uint8, (20_000, 3, 32, 32))  # 61 MB, sparse
    del file
    split = Split(np.load(tmp_path / "images.npy", mmap_mode="r"), np.zeros(20_000, dtype=np.int16))
    tracemalloc.start()
    loader = make(kind, split, batch=32)
    loader.next_batch()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4e6


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_take_what_one_device_with_their_total_batch_takes(ranks: int) -> None:
    whole = EpochOrder(50, seed=3)
    parts = [make_order(50, seed=3, batch=4, shard=Shard(rank, ranks)) for rank in range(ranks)]
    for counts in ((4, 4, 4), (12, 0, 0), (1, 6, 5)):  # in one or several pieces, as if a loader sent parts ahead
        taken = [np.concatenate([part.take(count) for count in counts if count]) for part in parts]
        for step in range(3):
            together = np.concatenate([indices[4 * step : 4 * step + 4] for indices in taken])
            assert np.array_equal(together, whole.take(4 * ranks))


def test_the_order_of_a_single_rank_is_the_whole_order_and_an_invalid_rank_is_refused() -> None:
    assert np.array_equal(make_order(9, seed=1, batch=2).take(9), EpochOrder(9, seed=1).take(9))
    with pytest.raises(ValueError, match="the rank must be 0 to ranks - 1"):
        make_order(9, seed=1, batch=2, shard=Shard(2, 2))
