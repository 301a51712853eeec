"""An image file of ImageNet's validation set, and of a user's folder of JPEG files."""

from labkit.data.ilsvrc2012 import read_image
from labkit.data.stored.forms import Sample
from labkit.data.stored.pack import _pixels
from tests.fuzz.check import documented, written
from tests.fuzz.mutate import of_bytes as mutate

__all__ = ["mutate", "run"]


def run(data: bytes) -> None:
    file = written("image.JPEG", data)
    with documented():
        assert read_image(file).shape == (3, 224, 224)
    with documented():
        pixels = _pixels(file.parent, Sample(file.name, 0, len(data)))
        assert pixels is None or pixels.shape == (3, 256, 256)
