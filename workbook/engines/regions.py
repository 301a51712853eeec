"""Compile a ResNet by its residual blocks, each kind of block once, or any network whole.

Inductor's time grows with the number of layers, and a ResNet repeats its layers: ResNet-152 has 50 blocks of 8 shapes.
Blocks of one shape share one compiled function, whose weights are arguments. Blocks end in convolutions, with which
Inductor fuses nothing anyway. Other networks are compiled whole. AlexNet and the VGGs train in two regions: autograd
then has the gradients of the head, where most weights are, before it goes back through the rest. VGG-16 gained 2 % (on
an H200, 32 px, batch 256, captured).

Python calls every region in every step. This costs nothing if a CUDA graph replays the step, and much otherwise:
ResNet-50's step at 32 px, batch 256 in BF16 took an H200's host 22 ms in regions and 15 ms whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from workbook.errors import GateError
from workbook.trace.profiler import section

# Inductor's counters of graphs that its cache on the disk had, or had not.
_COUNTERS = {"from the cache": "fxgraph_cache_hit", "compiled": "fxgraph_cache_miss"}
STAGES = ("layer1", "layer2", "layer3", "layer4")
Function = Callable[..., torch.Tensor]
Compile = Callable[[Function], Function]


@contextmanager
def counted_regions(facts: dict[str, Any]) -> Iterator[None]:
    """Add to `facts` how many graphs the context takes from Inductor's cache, and how many it compiles.

    Raise GateError if there is no graph: a switched-off compiler runs the same code eagerly, without a word.
    """
    from torch._dynamo.utils import counters

    def count() -> dict[str, int]:
        return {name: int(counters["inductor"][key]) for name, key in _COUNTERS.items()}

    before, graphs = count(), counters["stats"]["unique_graphs"]
    yield
    if counters["stats"]["unique_graphs"] == graphs:
        raise GateError("torch.compile made no graph, so the step would run eagerly under the name of a compiled step")
    facts["compiled_regions"] = {name: number - before[name] for name, number in count().items()}


def loss_function(
    model: Any, compile_: Compile | None, *, in_regions: bool = True
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function for the logits' cross-entropy in FP32, compiled in regions or whole; as is without `compile_`.

    The function marks sections. A compiled loss is one function with the end of the forward pass, and in its section.
    """

    def in_sections(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with section("forward"):
            logits = model(images)
        with section("loss"):
            return functional.cross_entropy(logits.float(), labels)

    def whole(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images).float(), labels)

    def last(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(_classify(model, features).float(), labels)

    if compile_ is None:
        return in_sections
    beginning = _beginning(model, head_apart=True) if in_regions else None
    compiled = compile_(whole) if beginning is None else _compiled(*beginning, last, compile_)

    def in_one_section(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with section("forward"):
            return compiled(images, labels)

    return in_one_section


def logits_function(model: Any, compile_: Compile | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function for the model's logits, compiled in regions or whole; as is without `compile_`."""

    def whole(images: torch.Tensor) -> torch.Tensor:
        return model(images)

    if compile_ is None:
        return whole
    beginning = _beginning(model, head_apart=False)
    if beginning is None:
        return compile_(whole)
    return _compiled(*beginning, lambda features: _classify(model, features), compile_)


def _beginning(model: Any, *, head_apart: bool) -> tuple[Function, list[nn.Module]] | None:
    """Return what comes before a ResNet's blocks, and the blocks; of AlexNet and VGG all but the head; else None."""
    if all(hasattr(model, stage) for stage in STAGES):
        blocks = [block for stage in STAGES for block in getattr(model, stage)]
        return lambda images: model.maxpool(model.relu(model.bn1(model.conv1(images)))), blocks
    if head_apart and hasattr(model, "features") and hasattr(model, "classifier"):
        return lambda images: model.features(images), []
    return None


def _compiled(first: Function, blocks: list[nn.Module], last: Function, compile_: Compile) -> Function:
    """Return `first`, the blocks (all by one region) and `last(features, *rest)` as one function of regions."""
    first_region, block_region, last_region = compile_(first), compile_(_through), compile_(last)

    def by_regions(images: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        features = first_region(images)
        for block in blocks:
            features = block_region(block, features)
        return last_region(features, *rest)

    return by_regions


def _classify(model: Any, features: torch.Tensor) -> torch.Tensor:
    head = model.classifier if hasattr(model, "classifier") else model.fc
    return head(torch.flatten(model.avgpool(features), 1))


def _through(block: nn.Module, features: torch.Tensor) -> torch.Tensor:
    return block(features)
