"""The loader makes batches at least 10 times as fast as torchvision's on a CPU, 20 times on a GPU.

    python benchmarks/loader_against_torchvision.py [--device cuda|cpu] [--pairs 6] [--images 10000]

Both loaders deliver the same synthetic 32x32 images, flipped, cropped and normalised, in shuffled batches of 256 on the
device. torchvision's ImageFolder reads PNG files from a temporary folder through a DataLoader with one persistent
worker per core (at least two), and pinned memory for a GPU. A leg is one epoch of full batches, after a warm epoch of
each loader. Legs run in turns and in both orders, so neither loader works while the other is timed. A leg ends when the
device has the last batch. Prints the ratio of images/s, ours over theirs, as a geometric mean with its 95 % interval
over the pairs. The bound holds if the whole interval lies above it, is broken if the whole interval lies below, and is
undecided otherwise (more pairs are needed). The exit code is 0 only if the bound holds.

An epoch of a DataLoader begins with a wait for the first batches. With more images, this wait weighs less.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import Image

from labkit.data import DataSet, open_data
from labkit.data.augment import Augment, Preparation
from labkit.data.loaders import make_loader
from labkit.torchvision_import import import_torchvision
from workbook.engines.device_loader import AnyLoader, DeviceLoader
from workbook.statistics import log_interval

BATCH = 256
BOUND = {"cuda": 20.0, "cpu": 10.0}
IMAGES = {"cuda": 50_000, "cpu": 10_000}


def main() -> int:
    """Measure and print. Return 0 if the bound holds, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=6, help="at least 2: an interval needs them")
    parser.add_argument("--images", type=int, help="at least 256; default 50,000 on a GPU and 10,000 on a CPU")
    options = parser.parse_args()
    count = options.images or IMAGES[options.device]
    if count < BATCH or options.pairs < 2:
        parser.error("at least 256 images and 2 pairs are needed")
    data = open_data("synthetic32", train_images=count, val_images=500)
    workers = max(2, psutil.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as folder:
        write_png(data, Path(folder))
        theirs = torchvision_loader(Path(folder), data, options.device, workers)
        ours = labkit_loader(data, options.device)
        ratio = compare(epoch_of_ours(ours, options.device), epoch_of_theirs(theirs, options.device), options.pairs)
        ours.close()
    assert ratio.low is not None and ratio.high is not None
    bound = BOUND[options.device]
    print(
        f"{options.device}, batch {BATCH}, {count:,} images, {ours.kind} loader over a DataLoader with "
        f"{workers} workers: {ratio.point:.1f}x [{ratio.low:.1f}, {ratio.high:.1f}], n = {ratio.n}"
    )
    verdict = "holds" if ratio.low >= bound else "is broken" if ratio.high < bound else "is undecided"
    print(f"    the bound of {bound:.0f}x {verdict}")
    return 0 if verdict == "holds" else 1


def labkit_loader(data: DataSet, device: str) -> AnyLoader:
    """Return labkit's loader with flip and crop."""
    augment = Augment(flip=True, crop=True)
    shared: dict[str, Any] = {"mean": data.mean, "std": data.std, "augment": augment}
    if device == "cpu":
        return make_loader(data.train, batch=BATCH, device=device, **shared)
    return DeviceLoader(data.train, batch=BATCH, prepare=Preparation(device=torch.device(device), **shared))


def torchvision_loader(folder: Path, data: DataSet, device: str, workers: int) -> Any:
    """Return a DataLoader over an ImageFolder with the same preparation, as in a training script."""
    import_torchvision()
    from torchvision import datasets, transforms

    prepare = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([level / 255 for level in data.mean], [level / 255 for level in data.std]),
        ]
    )
    return torch.utils.data.DataLoader(
        datasets.ImageFolder(str(folder), prepare),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=device == "cuda",
    )


def write_png(data: DataSet, folder: Path) -> None:
    """Write the training images as files, in one folder per class."""
    for number, (image, label) in enumerate(zip(data.train.images, data.train.labels, strict=True)):
        of_class = folder / f"{label:04d}"
        of_class.mkdir(exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(of_class / f"{number:06d}.png")


def epoch_of_ours(loader: AnyLoader, device: str) -> Callable[[], float]:
    """Return a function that makes the full batches of one epoch and returns images/s."""

    def epoch() -> float:
        began = time.perf_counter()
        for _ in range(loader.samples // BATCH):
            loader.next_batch()
        wait_for(device)
        return loader.samples // BATCH * BATCH / (time.perf_counter() - began)

    return epoch


def epoch_of_theirs(loader: Any, device: str) -> Callable[[], float]:
    """Return a function that makes the full batches of one epoch, copies them to the device and returns images/s."""

    def epoch() -> float:
        began, seen = time.perf_counter(), 0
        for images, labels in loader:
            images, labels = (part.to(device, non_blocking=True) for part in (images, labels))
            seen += len(labels)
        wait_for(device)
        return seen / (time.perf_counter() - began)

    return epoch


def wait_for(device: str) -> None:
    """Wait until the device has done all queued work."""
    if device == "cuda":
        torch.cuda.synchronize()


def compare(ours: Callable[[], float], theirs: Callable[[], float], pairs: int) -> Any:
    """Return the interval of the ratio ours/theirs over pairs of legs, after one warm leg of each."""
    ours()
    theirs()
    ratios = []
    for pair in range(pairs):
        rates = {leg: leg() for leg in ((ours, theirs) if pair % 2 else (theirs, ours))}
        ratios.append(rates[ours] / rates[theirs])
    return log_interval(ratios)


if __name__ == "__main__":
    sys.exit(main())
