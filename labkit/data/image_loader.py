"""Loads batches of images onto a device, from a named data set or from a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from labkit.card import Card
from labkit.data import DataSet, open_data
from labkit.data.dataset import SPLITS, SplitName
from labkit.devices import choose_device
from labkit.errors import UserError, check_whole, one_of

if TYPE_CHECKING:
    import torch

    from labkit.data.loaders import Loader

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

Precision = Literal["fp32", "fp16", "bf16"]


class ImageLoader(Card):
    """Batches of one split. A `for` loop runs one epoch, `len()` is its number of batches, `next_batch()` never ends.

    Training batches are always full: images that fill no batch open the next epoch. Each epoch has a new order.
    A loop over the `val` split starts anew and yields each image once, in an order that `seed` decides, so its last
    batch may be smaller.
    `data` has the classes, mean, standard deviation and origin of the data set.
    """

    def __init__(self, data: DataSet, batches: Loader, *, split: SplitName, precision: Precision) -> None:
        self.data, self.split, self.precision = data, split, precision
        self.batch, self.images = batches.batch, batches.samples
        self._batches = batches

    def __len__(self) -> int:
        return self.images // self.batch if self.split == "train" else -(-self.images // self.batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if self.split == "val":
            self.rewind()
        for number in range(len(self)):
            images, labels = self.next_batch()
            left = self.images - number * self.batch
            yield images[:left], labels[:left]

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next full batch, across epochs: normalised images (B, 3, H, W) and labels int64 (B,)."""
        import torch

        images, labels = self._batches.next_batch()
        return images.to(getattr(torch, DTYPES[self.precision])), labels

    def rewind(self) -> None:
        """Return to the first batch, so that the same batches come again."""
        self._batches.rewind()

    def close(self) -> None:
        """Free memory and threads. The loader cannot be used afterwards."""
        self._batches.close()

    def _card(self) -> tuple[str, list[tuple[str, str]]]:
        title = f"ImageLoader: {self.images:,} {self.split} images of {self.data.name}, {self.data.classes:,} classes"
        tensors = f"{DTYPES[self.precision]}, labels int64"
        return title, [("batch", f"{self.batch} images, {len(self)} batches per epoch"), ("images", tensors)]


def loader(
    name_or_folder: str | Path = "synthetic32",
    *,
    batch: int,
    device: torch.device | str | None = None,
    split: SplitName = "train",
    image_px: int | None = None,
    precision: Precision = "fp32",
    augment: bool = False,
    train_images: int | None = None,
    val_images: int | None = None,
    seed: int = 0,
) -> ImageLoader:
    """Load batches of images onto a device, as normalised `(images, labels)` tensors.

    `name_or_folder` is `synthetic32`, `digits`, or a folder with ImageNet32 or ImageNet's validation images.
    Images are (batch, 3, image_px, image_px) in `precision` (fp32, fp16 or bf16). Labels are int64 (batch,).
    `device` None is CUDA if there is a device, else the CPU. `image_px` scales images up; None leaves their size.
    `augment` flips and crops at random. `train_images` and `val_images` limit the splits: None means all of a folder,
    and 50,000 and 10,000 of `synthetic32`. `seed` decides the order, the images of `synthetic32` and the splits of
    `digits`: use the same seed for training and validation. `open_data` says where the data set stays.

    Raise UserError for an unknown name, split, precision or device, and for an impossible batch or size.

    >>> batches = labkit.loader("synthetic32", batch=64, device="cpu", train_images=320)
    >>> for images, labels in batches:
    ...     pass  # one epoch
    >>> images.shape, labels.dtype
    (torch.Size([64, 3, 32, 32]), torch.int64)
    >>> batches
    ImageLoader: 320 train images of synthetic32, 1,000 classes
      batch   64 images, 5 batches per epoch
      images  float32, labels int64
    """
    one_of("split", split, SPLITS)
    one_of("precision", precision, DTYPES)
    check_whole("seed", seed, 0)
    check_whole("batch", batch)
    for argument, value in {"image_px": image_px, "train_images": train_images, "val_images": val_images}.items():
        if value is not None:
            check_whole(argument, value)
    chosen = choose_device(device)
    data = open_data(name_or_folder, train_images=train_images, val_images=val_images, seed=seed)
    if data.validation_only and split == "train":
        raise UserError(f"{name_or_folder} holds only validation images, which are not for training; use split='val'.")
    images = data.train if split == "train" else data.val
    if batch > len(images):
        raise UserError(f"the batch is {batch}, and the {split} split has {len(images)} images; use a smaller batch.")
    from labkit.data.augment import Augment
    from labkit.data.loaders import make_loader

    batches = make_loader(
        images,
        batch=batch,
        device=chosen,
        mean=data.mean,
        std=data.std,
        seed=seed,
        augment=Augment(flip=augment, crop=augment),
        image_px=image_px,
    )
    return ImageLoader(data, batches, split=split, precision=precision)
