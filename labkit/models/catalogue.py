"""Which models there are, at which input sizes, and what was published of them."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import UserError, unknown


@dataclass(frozen=True)
class ModelEntry:
    """One architecture. Its family decides how it is built and adapted; `native_px` is the input it was designed for.

    `published_parameters` counts weights and biases at the native input, as torchvision's model pages state them
    (`num_params` of the weights; with the auxiliary heads for Inception-v3, without for GoogLeNet). Inception-BN's
    follow from the filters of its paper's table (`inception_bn_table`): the 11,295,240 that BN-Inception has in
    osmr/imgclsmob, less the 10,016 biases of its convolutions, which batch norm takes away. Those of the other two
    follow from the layers of their sources.
    A network with `words` takes bags of so many words instead of images and has no input size in pixels.
    A network with `noise` makes images from so many random numbers; it is two networks, trained against each other.
    """

    name: str
    title: str
    family: str
    published_parameters: int
    native_px: int = 224
    small: bool = True  # whether it also runs at 32x32
    classes: int = 1000
    words: int = 0
    noise: int = 0


@dataclass(frozen=True)
class ModelFacts:
    """What a model weighs and costs. FLOP count a multiply-add as two; per image, without batch norm and pooling.

    Of a GAN, forward is one image through both networks, and training a whole iteration for each real image it takes.
    """

    parameters: int
    parameter_bytes: int
    flop_forward: int
    flop_training: int
    weight_traffic_bytes: int | None = None  # of an iteration of a GAN; of others it follows from the optimiser


MODELS: dict[str, ModelEntry] = {
    entry.name: entry
    for entry in (
        # He et al. 2016, arXiv:1512.03385
        ModelEntry("resnet18", "ResNet-18", "resnet", 11_689_512),
        ModelEntry("resnet50", "ResNet-50", "resnet", 25_557_032),
        ModelEntry("resnet101", "ResNet-101", "resnet", 44_549_160),
        ModelEntry("resnet152", "ResNet-152", "resnet", 60_192_808),
        # Simonyan & Zisserman 2015, arXiv:1409.1556
        ModelEntry("vgg16", "VGG-16", "vgg", 138_357_544),
        ModelEntry("vgg19", "VGG-19", "vgg", 143_667_240),
        # Krizhevsky 2014, arXiv:1404.5997
        ModelEntry("alexnet", "AlexNet", "alexnet", 61_100_840),
        # Szegedy et al. 2015, arXiv:1409.4842; Ioffe & Szegedy 2015, arXiv:1502.03167; Szegedy et al. 2016, 1512.00567
        ModelEntry("googlenet", "GoogLeNet", "googlenet", 6_624_904),
        ModelEntry("inception_bn", "Inception-BN", "inception_bn", 11_285_224),
        ModelEntry("inception_v3", "Inception-v3", "inception", 27_161_264, native_px=299, small=False),
        # Keras's example reuters_mlp, with 10,000 words
        ModelEntry("mlp512", "512-unit MLP", "mlp", 5_144_110, native_px=0, small=False, classes=46, words=10_000),
        # Arjovsky et al. 2017, arXiv:1701.07875
        ModelEntry("wgan", "WGAN", "wgan", 6_085_888, native_px=32, small=False, noise=100),
    )
}


def find_model(name: str) -> ModelEntry:
    """The model of that name; UserError with the valid names otherwise."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def input_sizes(name: str) -> tuple[int, ...]:
    """The input edges in pixels at which a model is built; none of a network that takes words."""
    entry = find_model(name)
    if entry.words:
        return ()
    return (32, entry.native_px) if entry.small else (entry.native_px,)


def check_input(name: str, image_px: int) -> ModelEntry:
    """The entry, if the model takes that input; UserError with the sizes that it does take otherwise.

    A network that takes words leaves `image_px` alone.
    """
    entry = find_model(name)
    if not entry.words and image_px not in input_sizes(name):
        sizes = " or ".join(map(str, input_sizes(name)))
        raise UserError(f"{entry.title} is built for inputs of {sizes} pixels, not {image_px}.")
    return entry


def check_data(name: str, *, words: int) -> ModelEntry:
    """The entry, if the model takes such data: bags of so many `words`, images where that is 0; UserError otherwise."""
    entry = find_model(name)
    if entry.words == words:
        return entry
    takes, given = (f"bags of {count:,} words" if count else "images" for count in (entry.words, words))
    fitting = [other.name for other in MODELS.values() if other.words == words and not other.noise]
    raise UserError(f"{entry.title} takes {takes}, and the data are {given}: what takes those is {', '.join(fitting)}.")


def input_bytes(name: str, image_px: int) -> int:
    """Bytes of one input as it is stored: a byte a pixel and colour, or a bit a word."""
    entry = find_model(name)
    return -(-entry.words // 8) if entry.words else 3 * image_px**2
