"""Size and FLOP of a model. Numbers in the file `counts.json` need no import of a framework.

`counts.json` holds the counts of every model with its published number of classes. `write_counts` writes the file, and
a test compares the file with a new count. Without the file, each process would spend seconds on counting the same
layers. Other variants are counted on request.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import UserError, check_whole
from labkit.models.catalogue import CLASSES, MODELS, ModelFacts, check_input, input_sizes

if TYPE_CHECKING:
    import torch

COUNTS = Path(__file__).with_name("counts.json")


def count(
    network: str | torch.nn.Module,
    *,
    image_px: int | None = None,
    classes: int | None = None,
    head: str = "torchvision",
) -> ModelFacts:
    """Return parameters and FLOP per sample of a network: one that `build` makes by this name, or one of yours.

    >>> labkit.count("resnet50", image_px=224).parameters
    25557032

    FLOP are of convolutions and matrix products; a multiply-add is two. `flop_training` is forward and backward pass,
    without the optimiser; of a GAN, an iteration's per real image. `image_px` is as in `build`. A network of yours
    needs it, takes (N, 3, image_px, image_px), and has no use for `classes` and `head`. Raise UserError as `build`
    does, and for a network that does not take such images.
    """
    if image_px is not None:
        check_whole("image_px", image_px)
    if not isinstance(network, str):
        from labkit.models.torch_models import count_network

        if isinstance(network, type) or not hasattr(network, "parameters") or image_px is None:
            raise UserError(
                "give the name of a network, or a torch.nn.Module of yours with the image_px that it takes."
            )
        return count_network(network, (3, image_px, image_px))
    entry = MODELS.get(network)
    if entry and entry.noise:
        return _counts()[_key_of_gan(check_input(network, entry.native_px if image_px is None else image_px).name)]
    if entry:
        px = (*input_sizes(network), 32)[0] if image_px is None else image_px
        facts = known_count(network, image_px=px, classes=entry.classes if classes is None else classes, head=head)
        if facts is not None:
            return facts
    from labkit.models.torch_models import count_now, default_px

    edge = default_px(network) if image_px is None else image_px
    number = (entry.classes if entry else CLASSES) if classes is None else classes
    return count_now(network, image_px=edge, classes=number, head=head)


def known_count(name: str, *, image_px: int, classes: int, head: str) -> ModelFacts | None:
    """Return the model's entry of `counts.json`, or None if there is none and PyTorch would have to count."""
    return _counts().get(_key(name, image_px, classes, head))


def variants(name: str) -> list[tuple[int, str]]:
    """Return the distinct (input edge, head) of a model. For a network of words, the values have no effect."""
    if MODELS[name].words:
        return [(32, "torchvision")]
    is_vgg = MODELS[name].family == "vgg"
    return [
        (image_px, head)
        for image_px in input_sizes(name)
        for head in (("torchvision", "head512") if is_vgg and image_px == 32 else ("torchvision",))
    ]


def count_everything() -> dict[str, ModelFacts]:
    """Count every variant of every model and return the facts by key (imports PyTorch)."""
    from labkit.models.torch_models import count_now
    from labkit.models.wgan import count_iteration

    of_networks = {
        _key(name, image_px, entry.classes, head): count_now(name, image_px=image_px, classes=entry.classes, head=head)
        for name, entry in MODELS.items()
        for image_px, head in variants(name)
        if not entry.noise
    }
    gans = [name for name, entry in MODELS.items() if entry.noise]
    return of_networks | {_key_of_gan(name): count_iteration() for name in gans}


def _key_of_gan(name: str) -> str:
    return f"{name} {MODELS[name].native_px}px"


def _key(name: str, image_px: int, classes: int, head: str) -> str:
    if MODELS[name].words:
        return f"{name} {MODELS[name].words} words {classes} classes"
    return f"{name} {image_px}px {classes} classes, head {head}"


@cache
def _counts() -> dict[str, ModelFacts]:
    return {key: ModelFacts(**values) for key, values in json.loads(COUNTS.read_text(encoding="utf-8")).items()}


def write_counts() -> None:
    """Rewrite `counts.json`. Run `python -c "from labkit.models.facts import write_counts; write_counts()"`."""
    everything = {
        key: {name: value for name, value in asdict(facts).items() if value is not None}
        for key, facts in count_everything().items()
    }
    COUNTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
