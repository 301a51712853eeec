"""Build torchvision's models at native size or adapted to 32x32, and three further models, and count their FLOP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.errors import UserError, one_of
from labkit.models.catalogue import ModelFacts, check_input, find_model
from labkit.torchvision_import import import_torchvision

if TYPE_CHECKING:
    import torch

HEADS = ("torchvision", "head512")


def build(
    name: str,
    *,
    image_px: int = 32,
    classes: int | None = None,
    head: str = "torchvision",
    aux: bool = False,
) -> torch.nn.Module:
    """Return a freshly initialised model in training mode on the current default device.

    Input (N, 3, image_px, image_px), output logits (N, classes). At 32x32, AlexNet's first convolution has stride 1,
    and a VGG's `head` is torchvision's (1x1 features replicated to 7x7) or `head512` (two 512-wide layers on the 1x1
    features, as in Keras).
    `aux` adds the auxiliary classifiers of GoogLeNet and Inception-v3 (off: benchmarks time the main network).
    A network for bags of words takes (N, words), 1 where a document has the word. It has no size or head.
    A GAN takes noise (N, noise, 1, 1) and returns scores (N,).
    `classes` defaults to the published number. Raise UserError for an unknown name, size or head, and for a network
    of the catalogue that neither torchvision nor this function builds.
    """
    entry = check_input(name, image_px)
    one_of("head", head, HEADS)
    classes = entry.classes if classes is None else classes
    if entry.words:  # 512 units with dropout 0.5, as in Keras's example
        from torch import nn

        return nn.Sequential(nn.Linear(entry.words, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, classes))
    if entry.noise:
        from labkit.models.wgan import WGAN

        return WGAN()
    if entry.family == "inception_bn":
        from labkit.models.inception_bn import InceptionBN

        return InceptionBN(classes)
    constructor = getattr(import_torchvision().models, name, None)
    if constructor is None:
        raise UserError(
            f"torchvision has no builder named {name!r}: give the network a branch in `build` of "
            f"labkit/models/torch_models.py, or correct its name in labkit/models/catalogue.py."
        )
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if entry.family in ("googlenet", "inception"):
        options |= {"aux_logits": aux, "init_weights": True}
    model: torch.nn.Module = constructor(**options)
    if image_px == 32:
        _adapt_to_32(model, entry.family, head, classes)
    return model


def _adapt_to_32(model: Any, family: str, head: str, classes: int) -> None:
    from torch import nn

    if family == "alexnet":
        model.features[0].stride = (1, 1)
    elif family == "vgg" and head == "head512":
        model.avgpool = nn.Identity()
        layers = [nn.Linear(512, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, 512), nn.ReLU(True), nn.Dropout()]
        model.classifier = nn.Sequential(*layers, nn.Linear(512, classes))


def count_now(name: str, *, image_px: int, classes: int, head: str) -> ModelFacts:
    """Return parameters and FLOP per sample of a model, counted by PyTorch's flop counter on meta tensors.

    The FLOP are those of convolutions and matrix products, in the forward pass and in the backward pass (without the
    gradient of the input). Nothing is computed and no weight is allocated.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    batch = 2  # batch norm requires more than one value per channel
    with torch.device("meta"):
        model = build(name, image_px=image_px, classes=classes, head=head)
        words = find_model(name).words
        samples = torch.empty(batch, words) if words else torch.empty(batch, 3, image_px, image_px)
        labels = torch.zeros(batch, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        logits = model(samples)
    with FlopCounterMode(display=False) as backward:
        torch.nn.functional.cross_entropy(logits, labels).backward()
    parameters = list(model.parameters())
    return ModelFacts(
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        flop_forward=forward.get_total_flops() // batch,
        flop_training=(forward.get_total_flops() + backward.get_total_flops()) // batch,
    )
