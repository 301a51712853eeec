"""Networks in Keras 3: one definition for all back ends, with the layers of the PyTorch networks in `models.build`.

Importing this package imports no framework. `build` imports Keras, which then reads KERAS_BACKEND. A process keeps its
back end, so another back end needs another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labkit.errors import one_of
from labkit.models.catalogue import check_input, find_model
from labkit.models.torch_models import HEADS

if TYPE_CHECKING:
    import keras

KERAS_MODELS = ("resnet50", "vgg16", "googlenet", "inception_bn", "inception_v3")


def build(
    name: str,
    *,
    image_px: int = 32,
    classes: int | None = None,
    head: str = "torchvision",
    seed: int = 0,
) -> keras.Model:
    """Return a freshly initialised model under Keras's current dtype policy.

    Input (N, image_px, image_px, 3), output logits (N, classes). `head` and `classes` are those of `build` for
    PyTorch. Layers have the names of PyTorch's modules. Weights follow PyTorch's distributions and depend on `seed`
    alone, with every back end. Channels are last: TensorFlow's CPU kernels have no other format, tensor cores prefer
    it, and XLA chooses its layouts itself. Raise UserError for an unknown name, size or head.
    """
    entry = find_model(name)
    one_of("Keras model", name, KERAS_MODELS)
    check_input(name, image_px)
    one_of("head", head, HEADS)
    import keras

    from workbook.engines.keras.networks.architectures import NETWORKS
    from workbook.engines.keras.networks.layers import Layers

    images = keras.Input(shape=(image_px, image_px, 3), name="images")
    network, spread = NETWORKS[name]
    classes = entry.classes if classes is None else classes
    layers = Layers(seed, spread=spread)
    outputs = network(layers, images, classes=classes, head=head)
    return keras.Model(images, outputs, name=name)
