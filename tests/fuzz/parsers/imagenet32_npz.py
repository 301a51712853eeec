"""An `.npz` batch of ImageNet32."""

import io
import random
import zipfile

from labkit.data.imagenet32 import _check_images, _check_labels, _load
from tests.fuzz.check import documented, written
from tests.fuzz.mutate import of_bytes

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    file = written("val_data.npz", data)
    with documented():
        batch = _load(file, "npz")
        if {"data", "labels"} <= set(batch):
            images = _check_images(file, batch["data"])
            labels = _check_labels(file, batch["labels"], len(images))
            assert labels.shape == images.shape[:1]


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Change the archive, or a member of it with a fresh checksum."""
    try:
        if rng.random() < 0.3:
            raise zipfile.BadZipFile
        file = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
            names = old.namelist()
            changed = rng.choice(names)
            for name in names:
                content = old.read(name)
                new.writestr(name, of_bytes(content[:20_000], [], rng) if name == changed else content)
        return file.getvalue()
    except Exception:  # noqa: BLE001 - a damaged archive
        return of_bytes(data, others, rng)
