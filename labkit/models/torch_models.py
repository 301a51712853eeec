"""torchvision's models, at their own size and adapted to 32x32, three that it does not have, and what they count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.errors import unknown
from labkit.models.catalogue import ModelFacts, check_input, find_model
from labkit.models.torchvision_import import import_torchvision

if TYPE_CHECKING:
    import torch

STEMS = ("imagenet", "cifar")
HEADS = ("torchvision", "head512")


def build(
    name: str,
    *,
    image_px: int = 32,
    classes: int | None = None,
    stem: str = "imagenet",
    head: str = "torchvision",
    aux: bool = False,
    constraint: str = "clipping",
) -> torch.nn.Module:
    """A freshly initialised model in training mode on the current default device.

    Input (N, 3, image_px, image_px), output logits (N, classes). At 32x32: a ResNet's `stem` is torchvision's or
    `cifar` (3x3, stride 1, no pooling); a VGG's `head` is torchvision's (1x1 features replicated to 7x7) or `head512`
    (two 512-wide layers on the 1x1 features, as Keras builds at this size); AlexNet's first convolution has stride 1.
    `aux` adds the auxiliary classifiers of GoogLeNet and Inception-v3 (off: benchmarks time the main network).
    A network of bags of words takes (N, words), 1 where a document has the word, and has neither size, stem nor head.
    A GAN takes noise (N, noise, 1, 1), gives scores (N,), and its critic follows from the `constraint`.
    Without `classes` it has as many as it was published with.
    UserError for a name, size, stem or head that there is none of.
    """
    entry = check_input(name, image_px)
    if stem not in STEMS:
        raise unknown("stem", stem, STEMS)
    if head not in HEADS:
        raise unknown("head", head, HEADS)
    classes = entry.classes if classes is None else classes
    if entry.words:  # half of 512 units dropped out, as in Keras's example
        from torch import nn

        return nn.Sequential(nn.Linear(entry.words, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, classes))
    if entry.noise:
        from labkit.models.wgan import WGAN

        return WGAN(constraint)
    if entry.family == "inception_bn":
        from labkit.models.inception_bn import InceptionBN

        return InceptionBN(classes)
    constructor = getattr(import_torchvision().models, name)
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if entry.family in ("googlenet", "inception"):
        options |= {"aux_logits": aux, "init_weights": True}
    model: torch.nn.Module = constructor(**options)
    if image_px == 32:
        _adapt_to_32(model, entry.family, stem, head, classes)
    return model


def _adapt_to_32(model: Any, family: str, stem: str, head: str, classes: int) -> None:
    from torch import nn

    if family == "resnet" and stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.maxpool = nn.Identity()
    elif family == "alexnet":
        model.features[0].stride = (1, 1)
    elif family == "vgg" and head == "head512":
        model.avgpool = nn.Identity()
        layers = [nn.Linear(512, 512), nn.ReLU(True), nn.Dropout(), nn.Linear(512, 512), nn.ReLU(True), nn.Dropout()]
        model.classifier = nn.Sequential(*layers, nn.Linear(512, classes))


def count_now(name: str, *, image_px: int, classes: int, stem: str, head: str) -> ModelFacts:
    """Parameters and FLOP per sample of a model, counted by PyTorch's flop counter on tensors without memory.

    Convolutions and matrix products of the forward and of the backward pass (which computes no gradient of the
    input). Nothing is run and no weight is allocated.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    batch = 2  # batch norm wants more than one value a channel
    with torch.device("meta"):
        model = build(name, image_px=image_px, classes=classes, stem=stem, head=head)
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
