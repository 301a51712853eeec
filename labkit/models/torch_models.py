"""Build torchvision's classifiers at any size that they take, and three further networks, and count their FLOP."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from labkit.errors import UserError, check_whole, nearest_first, one_of, unknown
from labkit.models.catalogue import CLASSES, MODELS, ModelEntry, ModelFacts, check_input, input_sizes
from labkit.torchvision_import import import_torchvision

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

HEADS = ("torchvision", "head512")
NEAREST = 8  # names in the message on an unknown one
# PyTorch's operators that multiply matrices or vectors, or transform, inside. Its counter knows other forms of them.
PRODUCTS = re.compile(
    r"_?\w*(mm|mv|dot|rnn|rnn_layer|convolution)|_trilinear|_cdist_\w+|_euclidean_dist|_fft_\w+"
    r"|_?linalg_(?!vector|check|cross|diagonal|_powsum).+"
)
WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
EDGES = (32, 48, 64, 96, 112, 128, 160, 192, 224, 256, 299, 384, 512)  # sizes among which a message names the nearest


def build(
    name: str,
    *,
    image_px: int | None = None,
    classes: int | None = None,
    head: str = "torchvision",
    aux: bool = False,
) -> torch.nn.Module:
    """Return a freshly initialised network in training mode on the current default device.

    >>> network = labkit.build("resnet50", image_px=64, classes=10)
    >>> network(torch.randn(2, 3, 64, 64)).shape
    torch.Size([2, 10])

    `name` is a network of `labkit.models.MODELS`, any classifier of torchvision (`vit_b_16`, `convnext_tiny`, …), or
    a file or name that `labkit.models.open_network` takes (`mine.py`), which takes no other argument.
    Input (N, 3, image_px, image_px), output logits (N, classes). With `aux` in training mode, the output is
    torchvision's named tuple. `image_px` None is 32 for a network of `MODELS` that runs at that size, else the size
    that the network was made for. `classes` None is the published number.

    At 32 pixels, AlexNet's first convolution has stride 1. A VGG's `head` is torchvision's there (1x1 features
    replicated to 7x7), or `head512`: two 512-wide layers on the 1x1 features, as in Keras. `aux` adds the auxiliary
    classifiers of GoogLeNet and Inception-v3. A network for bags of words takes (N, words), 1 where a document has the
    word; it has no size or head. A GAN takes noise (N, noise, 1, 1) and returns scores (N,).

    Raise UserError for an unknown name or head, and for a size that the layers do not take, with the nearest that work.
    """
    if not isinstance(name, str):
        raise UserError(f"name is {name!r}; use the name of a network, such as 'resnet50'.")
    if name.endswith(".py") or ":" in name:
        if (image_px, classes, head, aux) != (None, None, HEADS[0], False):
            raise UserError(f"{name} says itself how its network is built; leave out the other arguments.")
        from labkit.models.networks import open_network

        return open_network(name).build()
    one_of("head", head, HEADS)
    entry = MODELS.get(name)
    edge = default_px(name) if image_px is None else image_px
    check_whole("image_px", edge)
    if classes is not None:
        check_whole("classes", classes)
    if head != HEADS[0] and not (entry and entry.family == "vgg" and edge == 32):
        raise UserError(f"head={head!r} is for VGGs at 32 pixels; leave it out for {name} at {edge} pixels.")
    if aux and name not in WITH_AUXILIARY_HEADS:
        raise UserError(f"aux=True is for {' and '.join(WITH_AUXILIARY_HEADS)}; leave it out for {name}.")
    if entry and (entry.words or entry.noise):
        if entry.noise:
            check_input(name, edge)
        return _without_images(entry, classes)
    if edge not in input_sizes(name) and not _takes(name, edge, aux):
        near = sorted((other for other in EDGES if _takes(name, other, aux)), key=lambda other: abs(other - edge))[:3]
        valid = ", ".join(map(str, sorted(near)))
        raise UserError(f"{name} does not take images of {edge} pixels; the nearest sizes that it takes: {valid}.")
    network = _network(name, edge, classes or (entry.classes if entry else CLASSES), aux)
    if entry and edge == 32:
        _adapt_to_32(network, entry.family, head, classes or entry.classes)
    return network


def classifiers() -> list[str]:
    """Return the names of torchvision's classifiers, and of those networks of `MODELS` that torchvision lacks."""
    models = import_torchvision().models
    return sorted({*models.list_models(module=models), *MODELS})


def default_px(name: str) -> int:
    """Return the input edge that `build` takes without `image_px`. Raise UserError for an unknown name."""
    if name in MODELS:
        return (*input_sizes(name), 32)[0]
    if name not in (names := classifiers()):
        hint = f"`labkit.models.classifiers()` lists all {len(names)}. A file of your own ends in .py."
        raise unknown("model", name, nearest_first(name, names)[:NEAREST], hint=hint)
    models = import_torchvision().models
    edge: int = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
    return edge


def _without_images(entry: ModelEntry, classes: int | None) -> torch.nn.Module:
    if entry.noise:
        from labkit.models.wgan import WGAN

        return WGAN()
    from torch import nn  # 512 units with dropout 0.5, as in Keras's example

    layers = [nn.Linear(entry.words, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, classes or entry.classes)]
    return nn.Sequential(*layers)


def _network(name: str, image_px: int, classes: int, aux: bool = False) -> torch.nn.Module:
    """Return the network as its authors made it, for images of `image_px`."""
    if name == "inception_bn":
        from labkit.models.inception_bn import InceptionBN

        return InceptionBN(classes)
    models = import_torchvision().models
    constructor = getattr(models, name, None)
    if constructor is None:
        raise UserError(
            f"torchvision has no builder named {name!r}: give the network a branch in `build` of "
            f"labkit/models/torch_models.py, or correct its name in labkit/models/catalogue.py."
        )
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name in WITH_AUXILIARY_HEADS:
        options |= {"aux_logits": aux, "init_weights": True}
    if name.startswith("vit_"):
        options["image_size"] = image_px
    if name.startswith("maxvit_"):
        options["input_size"] = (image_px, image_px)
    network: torch.nn.Module = constructor(**options)
    return network


def _takes(name: str, image_px: int, aux: bool) -> bool:
    """Return whether a forward pass works. It runs on meta tensors, which have shapes and no values."""
    import torch

    if image_px in input_sizes(name):
        return True
    try:
        _on_meta(lambda: _network(name, image_px, CLASSES, aux))(torch.empty(2, 3, image_px, image_px, device="meta"))
    except (RuntimeError, ValueError, AssertionError):  # a layer's output would be empty, or no whole number of patches
        return False
    return True


def _on_meta(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return the network on the meta device. A few constructors read numbers from tensors, which meta tensors lack."""
    import torch

    try:
        with torch.device("meta"):
            return make()
    except NotImplementedError:
        with torch.device("cpu"):
            return make().to("meta")


def _adapt_to_32(model: Any, family: str, head: str, classes: int) -> None:
    from torch import nn

    if family == "alexnet":
        model.features[0].stride = (1, 1)
    elif family == "vgg" and head == "head512":
        model.avgpool = nn.Identity()
        layers = [nn.Linear(512, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, 512), nn.ReLU(True), nn.Dropout()]
        model.classifier = nn.Sequential(*layers, nn.Linear(512, classes))


def count_now(name: str, *, image_px: int, classes: int, head: str) -> ModelFacts:
    """Return parameters and FLOP per sample of the network that `build` makes, without `counts.json`."""
    words = MODELS[name].words if name in MODELS else 0
    network = _on_meta(lambda: build(name, image_px=image_px, classes=classes, head=head))
    return count_network(network, (words,) if words else (3, image_px, image_px))


def count_network(network: torch.nn.Module, shape: tuple[int, ...]) -> ModelFacts:
    """Return parameters and FLOP per sample of a network whose samples have `shape`, by PyTorch's flop counter.

    The FLOP are those of convolutions and matrix products, in the forward pass and in the backward pass (without the
    gradient of the input). The network is copied to the meta device: nothing is computed, and no weight changes.
    Raise UserError for a network that does not take these samples there, returns no tensor, or has a product that the
    counter takes for nothing, such as `torch.mv` and a custom operator.
    """
    import copy

    import torch
    from torch.utils.flop_counter import FlopCounterMode

    batch = 2  # batch norm requires more than one value per channel
    names: set[str] = set()
    own = {torch.ops.aten.convolution_backward: flop_of_backward_convolution}
    try:
        model = copy.deepcopy(network).to("meta").train()
        with _products_outside(names), FlopCounterMode(display=False) as forward:
            answers = model(torch.empty(batch, *shape, device="meta"))
        if names:
            raise ValueError(f"the FLOP of {', '.join(sorted(names))} are not known")
        with FlopCounterMode(display=False, custom_mapping=own) as backward:
            answers.sum().backward()
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{type(network).__name__} could not be counted with samples of shape {shape}: {reason}. A network must "
            "take a float tensor of samples, return a tensor, and compute by matrix products and convolutions."
        ) from error
    parameters = list(network.parameters())
    return ModelFacts(
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        flop_forward=forward.get_total_flops() // batch,
        flop_training=(forward.get_total_flops() + backward.get_total_flops()) // batch,
    )


def _products_outside(names: set[str]) -> TorchDispatchMode:
    """Return a mode that adds to `names` the operators that the counter takes for nothing, and that may be products."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operator, foreign = func.overloadpacket, func.namespace not in ("aten", "prims", "prim")
            if operator not in flop_registry and (foreign or PRODUCTS.fullmatch(operator.__name__)):
                names.add(str(operator))
            return func(*args, **(kwargs or {}))

    return Names()


def flop_of_backward_convolution(grad: Any, images: Any, weight: Any, *others: Any, **_: Any) -> int:
    """Return the FLOP of a convolution's gradients, each as many as in the forward pass; a multiply-add is two.

    The arguments are those of `aten.convolution_backward`, with shapes in the place of tensors. PyTorch 2.13's own
    formula counts the weights' gradient of a grouped convolution as if it had no groups.

    >>> image, kernel = (1, 4, 8, 8), (4, 1, 3, 3)  # a group per channel
    >>> flop_of_backward_convolution(image, image, kernel, None, 1, 1, 1, False, 0, 4, (True, True, False))
    9216
    """
    transposed, output_mask = others[4], others[7]
    pixels = math.prod((images if transposed else grad)[2:])
    return int(2 * images[0] * pixels * math.prod(weight) * sum(output_mask[:2]))
