"""Readers deliver as many images/s as the loop that a user writes by hand with the same library, within 3 %.

    python benchmarks/loader_loops.py [--reader torch_pil tf_data] [--workers 2] [--batch 64] [--pairs 8]

`torch_pil` is compared with torchvision's ImageFolder in a DataLoader, `tf_data` with the tf.data pipeline of
TensorFlow's ImageNet training. Both sides read the same drawn JPEG files (warm page cache), with random resized crop
and flip to 224 pixels, and deliver bytes. Each leg opens its loader anew, because one that is paused fills its buffers
beside the other. It times a number of batches after a lead-in. Legs run in turns and in both orders. Prints images/s of
ours over the hand-written loop's as a geometric mean with its 95 % interval over the pairs. The exit code is 1 if a
whole interval lies beyond 3 %.

No leg crosses the end of an epoch, where a hand-written loop waits for its first batches. With 1.28 million images this
wait weighs nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import torch

from labkit.data import cache_dir
from labkit.torchvision_import import import_torchvision
from workbook.engines.state import quiet_collector
from workbook.statistics import Interval, log_interval
from workbook.storage import StoredSet, make_set
from workbook.storage.readers import open_reader

WITHIN = 0.03
PX = 224
Leg = Callable[[], Generator[Any, None, None]]


def main() -> int:
    """Measure and print. Return 1 if a reader is beyond the bound, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reader", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="at least 1; default: all cores")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=40, help="of a leg")
    parser.add_argument("--pairs", type=int, default=8, help="at least 2: an interval needs them")
    asked = parser.parse_args()
    if asked.pairs < 2 or min(asked.workers, asked.batch, asked.batches) < 1:
        parser.error("at least 2 pairs, 1 worker, and batches of 1 image are needed")
    lead_in = 4 * asked.workers + 12  # twice what a DataLoader's workers prefetch, and until tf.data has tuned itself
    images = asked.batch * (lead_in + asked.batches)
    folder = cache_dir() / f"stored-drawn-{images}"
    stored = make_set(folder, images=images, classes=min(100, images), forms=["jpeg"])["jpeg"]
    beyond = False
    for name in asked.reader:
        ratio, rate = compare(name, stored, asked, lead_in)
        assert ratio.low is not None and ratio.high is not None
        broken = ratio.high < 1 - WITHIN or ratio.low > 1 + WITHIN
        holds = ratio.low >= 1 - WITHIN and ratio.high <= 1 + WITHIN
        print(
            f"{name}, batch {asked.batch}, {asked.workers} workers: {rate:,.0f} images/s, over the hand-written loop "
            f"{ratio.point:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}], n = {ratio.n}: the bound of {WITHIN:.0%} "
            f"{'is broken' if broken else 'holds' if holds else 'is undecided'}"
        )
        beyond |= broken
    return int(beyond)


def compare(name: str, stored: StoredSet, asked: Any, lead_in: int) -> tuple[Interval, float]:
    """Return the ratio over the pairs of legs, and our images/s over all of them."""

    def ours() -> Generator[Any, None, None]:
        about: dict[str, Any] = {"batch": asked.batch, "workers": asked.workers, "seed": 0}
        with closing(open_reader(name, stored, image_px=PX, device=_device(), **about)) as reader:
            while True:
                yield reader.next_batch()

    legs: dict[str, Leg] = {"ours": ours, "theirs": PEERS[name](stored, asked.batch, asked.workers)}

    def seconds(leg: str) -> float:
        batches = legs[leg]()
        for _ in range(lead_in):
            next(batches)
        began = time.perf_counter()
        for _ in range(asked.batches):
            images, _labels = next(batches)
            assert images.dtype == torch.uint8 and len(images) == asked.batch
        took_s = time.perf_counter() - began
        batches.close()
        return took_s

    quiet_collector()
    ratios, ours_s = [], 0.0
    for pair in range(asked.pairs):
        took = {leg: seconds(leg) for leg in (("ours", "theirs") if pair % 2 else ("theirs", "ours"))}
        ratios.append(took["theirs"] / took["ours"])
        ours_s += took["ours"]
    return log_interval(ratios), asked.pairs * asked.batches * asked.batch / ours_s


def by_hand_in_torch(stored: StoredSet, batch: int, workers: int) -> Leg:
    """Return the epoch of a DataLoader over torchvision's ImageFolder."""
    import_torchvision()
    from torchvision import datasets
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(PX), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    loader = torch.utils.data.DataLoader(
        datasets.ImageFolder(str(stored.folder / "train"), transform),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=_device() == "cuda",
    )

    def epoch() -> Generator[Any, None, None]:
        yield from loader

    return epoch


def by_hand_in_tensorflow(stored: StoredSet, batch: int, workers: int) -> Leg:
    """Return the epoch of a tf.data pipeline."""
    import tensorflow as tf

    paths = [str(file) for file in stored.files]
    labels = [sample.label for sample in stored.samples]

    def load(path: Any, label: Any) -> Any:
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data),
            bounding_boxes=tf.zeros((1, 0, 4)),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.io.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, (PX, PX)))
        return tf.cast(image, tf.uint8), label

    files = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths))
    batches = files.map(load, num_parallel_calls=tf.data.AUTOTUNE).batch(batch, drop_remainder=True)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    batches = batches.prefetch(tf.data.AUTOTUNE).with_options(options)

    def epoch() -> Generator[Any, None, None]:
        for images, numbers in batches:
            on_host = torch.from_numpy(images.numpy()).permute(0, 3, 1, 2)
            yield on_host.pin_memory() if _device() == "cuda" else on_host, torch.from_numpy(numbers.numpy())

    return epoch


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


PEERS: dict[str, Callable[[StoredSet, int, int], Leg]] = {
    "torch_pil": by_hand_in_torch,
    "tf_data": by_hand_in_tensorflow,
}

if __name__ == "__main__":
    sys.exit(main())
