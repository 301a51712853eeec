"""Networks in Keras 3: one definition for its back ends, of the same layers as the PyTorch networks of `build`.

Importing this room imports no framework; `build` imports Keras, which reads KERAS_BACKEND then. A process has one back
end for good, so whoever wants another starts another process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from labkit.errors import UserError, unknown
from labkit.models.catalogue import check_input, find_model
from labkit.models.torch_models import HEADS, STEMS

if TYPE_CHECKING:
    import keras

KERAS_MODELS = ("resnet50", "vgg16", "googlenet", "inception_bn", "inception_v3")
DATA_FORMATS = ("channels_last", "channels_first")


def build(
    name: str,
    *,
    image_px: int = 32,
    classes: int | None = None,
    stem: str = "imagenet",
    head: str = "torchvision",
    aux: bool = False,
    data_format: str = "channels_last",
    seed: int = 0,
) -> keras.Model:
    """A freshly initialised model, under Keras's dtype policy of this moment.

    Input (N, image_px, image_px, 3), output logits (N, classes). `stem`, `head`, `aux` and `classes` mean what they do
    in PyTorch's `build`; the outputs of auxiliary heads follow the logits, also in inference, where PyTorch leaves them
    away: GoogLeNet's second and first, Inception-v3's only one. Layers have the names of PyTorch's modules. Weights
    follow the distributions of PyTorch's, and from `seed` alone, with every back end.

    `data_format` is channels_last unless said otherwise: TensorFlow's CPU kernels have no other, tensor cores want
    it, and XLA chooses its layouts itself. With channels_first the input is (N, 3, image_px, image_px).
    UserError for what there is none of, and for channels_first where TensorFlow has no GPU.
    """
    entry = find_model(name)
    if name not in KERAS_MODELS:
        raise unknown("Keras model", name, KERAS_MODELS)
    check_input(name, image_px)
    for word, given, valid in (
        ("stem", stem, STEMS),
        ("head", head, HEADS),
        ("data format", data_format, DATA_FORMATS),
    ):
        if given not in valid:
            raise unknown(word, given, valid)
    import keras

    from labkit.models.in_keras.layers import Layers

    if data_format == "channels_first" and keras.backend.backend() == "tensorflow":
        _check_tensorflow_has_a_gpu()
    layers = Layers(data_format, seed)
    size = (image_px, image_px)
    images = keras.Input(shape=(*size, 3) if data_format == "channels_last" else (3, *size), name="images")
    network = import_module(f"labkit.models.in_keras.{name}")
    classes = entry.classes if classes is None else classes
    stem = stem if image_px == 32 else "imagenet"  # as in PyTorch's `build`, and a head is looked at there only too
    outputs = network.outputs(layers, images, classes=classes, stem=stem, head=head, aux=aux)
    return keras.Model(images, outputs, name=name)


def _check_tensorflow_has_a_gpu() -> None:
    import tensorflow

    if not tensorflow.config.list_physical_devices("GPU"):
        raise UserError(
            "TensorFlow's CPU kernels take channels_last images only: build with data_format channels_last."
        )
