"""A pickled batch of ImageNet32."""

from labkit.data.imagenet32 import _check_images, _check_labels, _load
from tests.fuzz.check import documented, written
from tests.fuzz.mutate import of_bytes as mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    file = written("val_data", data)
    with documented():
        batch = _load(file, "pickle")
        if {"data", "labels"} <= set(batch):
            images = _check_images(file, batch["data"])
            labels = _check_labels(file, batch["labels"], len(images))
            assert labels.shape == images.shape[:1]
