"""The models, their input sizes and their published parameters."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import UserError, one_of

CRITIC_STEPS = 5  # steps of a WGAN's critic per step of its generator (the paper's code occasionally takes 100)
CLASSES = 1000  # of ImageNet


@dataclass(frozen=True)
class ModelEntry:
    """One architecture. `family` decides how it is built and adapted. `native_px` is the edge it was designed for.

    `published_parameters` counts weights and biases at the native input. For torchvision's models it is `num_params` of
    the model pages, with the auxiliary heads for Inception-v3 and without for GoogLeNet. For Inception-BN it follows
    from the filters of the paper's table (`inception_bn_table`): BN-Inception in osmr/imgclsmob has 11,295,240, of
    which 10,016 are biases of convolutions, which batch norm cancels. For the MLP and the WGAN it follows from the
    layers of their sources.
    `words` is the size of the bags of words of a network without images, which has no input size in pixels.
    `noise` is the number of random numbers from which a GAN makes an image; a GAN is two networks trained together.
    """

    name: str
    title: str
    family: str
    published_parameters: int
    native_px: int = 224
    small: bool = True  # whether it also runs at 32x32
    classes: int = CLASSES
    words: int = 0
    noise: int = 0


@dataclass(frozen=True)
class ModelFacts:
    """Size and FLOP of a model. FLOP are per image, without batch norm and pooling; a multiply-add counts as two.

    For a GAN, `flop_forward` is one image through both networks, and `flop_training` an iteration per real image.
    """

    parameters: int
    parameter_bytes: int
    flop_forward: int
    flop_training: int
    weight_traffic_bytes: int | None = None  # per iteration of a GAN; for other models it follows from the optimiser


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
    """Return the model with this name. Raise UserError, with the valid names, for an unknown one."""
    return MODELS[one_of("model", name, MODELS)]


def input_sizes(name: str) -> tuple[int, ...]:
    """Return the input edges in pixels at which a model is measured: 32 and the native one. Words have no size."""
    entry = MODELS.get(name)
    if entry is None:
        return ()
    if entry.words:
        return ()
    return (32, entry.native_px) if entry.small else (entry.native_px,)


def check_input(name: str, image_px: int) -> ModelEntry:
    """Return the entry of a model. Raise UserError, with the valid sizes, if the model does not take `image_px`.

    Networks of words ignore `image_px`.
    """
    entry = find_model(name)
    if not entry.words and image_px not in input_sizes(name):
        sizes = " or ".join(map(str, input_sizes(name)))
        raise UserError(f"{entry.title} is built for inputs of {sizes} pixels, not {image_px}.")
    return entry
