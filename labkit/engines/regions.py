"""Compile a ResNet by its residual blocks, each kind of block once, or any network whole.

Inductor's time grows with the number of layers, and a ResNet repeats its layers: ResNet-152 has 50 blocks of 8 shapes.
Blocks of one shape share one compiled function, whose weights are arguments; between blocks stand convolutions, which
nothing is fused with anyway. Networks without blocks are compiled whole; but AlexNet and the VGGs train in two regions,
since most of their weights are in the head, whose gradients autograd then has before it goes back through the rest.
A VGG-16 alone on an H200 (32 px, batch 256, captured) gained 2 % by it.

Python calls every region in every step, which costs nothing where a CUDA graph replays the step, and much where it does
not: ResNet-50's step at 32 px, batch 256 in BF16 took an H200's host 22 ms in regions and 15 ms whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from labkit.engines.sections import section

# How Inductor counts, for each graph, whether its cache on the disk had it.
_COUNTERS = {"from the cache": "fxgraph_cache_hit", "compiled": "fxgraph_cache_miss"}
STAGES = ("layer1", "layer2", "layer3", "layer4")
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def compiler_cache() -> dict[str, int]:
    """Graphs that this process took from Inductor's cache and graphs that it compiled, so far."""
    from torch._dynamo.utils import counters

    return {name: int(counters["inductor"][key]) for name, key in _COUNTERS.items()}


def loss_function(
    model: Any, compile_: Compile | None, *, in_regions: bool = True
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Cross-entropy of the model's logits, in FP32, compiled in regions or whole; as it is without `compile_`.

    Marks its sections; compiled the loss is one function with (the end of) the forward pass, and so in its section.
    """

    def in_sections(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with section("forward"):
            logits = model(images)
        with section("loss"):
            return functional.cross_entropy(logits.float(), labels)

    if compile_ is None:
        return in_sections

    def whole(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images).float(), labels)

    def last(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(_classify(model, features).float(), labels)

    if not in_regions:
        compiled = compile_(whole)
    elif hasattr(model, "features") and hasattr(model, "classifier"):
        compiled = _head_apart(model, compile_, last)
    else:
        compiled = _compiled(model, compile_, whole, last)

    def in_one_section(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with section("forward"):
            return compiled(images, labels)

    return in_one_section


def logits_function(model: Any, compile_: Compile | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """The model's logits, compiled in regions or whole; as it is without `compile_`."""

    def whole(images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(images)
        return result

    return _compiled(model, compile_, whole, lambda features: _classify(model, features))


def _compiled(
    model: Any, compile_: Compile | None, whole: Callable[..., torch.Tensor], last: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """`whole(images, *rest)`, or the same in regions, of which `last(features, *rest)` follows the blocks."""
    if compile_ is None:
        return whole
    if not all(hasattr(model, stage) for stage in STAGES):
        return compile_(whole)
    blocks = [block for stage in STAGES for block in getattr(model, stage)]

    def first(images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model.maxpool(model.relu(model.bn1(model.conv1(images))))
        return result

    first_region, block_region, last_region = compile_(first), compile_(_through), compile_(last)

    def by_regions(images: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        features = first_region(images)
        for block in blocks:
            features = block_region(block, features)
        result: torch.Tensor = last_region(features, *rest)
        return result

    return by_regions


def _head_apart(model: Any, compile_: Compile, last: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def first(images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model.features(images)
        return result

    first_region, last_region = compile_(first), compile_(last)
    return lambda images, labels: last_region(first_region(images), labels)


def _classify(model: Any, features: torch.Tensor) -> torch.Tensor:
    head = model.classifier if hasattr(model, "classifier") else model.fc
    result: torch.Tensor = head(torch.flatten(model.avgpool(features), 1))
    return result


def _through(block: nn.Module, features: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = block(features)
    return result
