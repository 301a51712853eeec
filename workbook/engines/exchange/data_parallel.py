"""Several GPUs in one process: PyTorch's DataParallel, as in its ImageNet example of 2017 and in the NYU paper.

In each step the first device copies the weights to the other devices. Each device gets a part of the batch and returns
its gradients, and the first device updates. For AlexNet and VGG the example splits only the convolutions (`features`).
Their fully connected layers hold most weights and little work, and stay on the first device with the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from workbook.trials.rules import Rule
from workbook.trials.trial import Trial

SPLIT_IN_FEATURES = ("alexnet", "vgg")  # how the names of these networks begin


# fmt: off
RULES = (
    Rule("never", lambda t: t.device == "cpu", "DataParallel splits a batch among GPUs; a CPU is one device to it"),
    Rule("never", lambda t: t.engine != "eager" or t.optimizer != "sgd",
        "DataParallel copies the network in each step: it needs the mode eager and the optimiser sgd"),
    Rule("version", lambda t: t.gradient_precision != "fp32", "DataParallel adds gradients up as they are, in FP32"),
    Rule("version", lambda t: t.precision == "bf16",
        "the threads of DataParallel autocast to FP16 only, even if their caller autocasts to BF16"),
    Rule("here", lambda t: torch.cuda.device_count() < t.devices and f"({torch.cuda.device_count()})",
        "the configuration asks for {devices} devices, and there are fewer that it can use {value}"),
)
# fmt: on


class InParts(nn.Module):
    """DataParallel's computation on one device: the parts of a batch one after the other, their results joined.

    Batch norm takes each part's statistics. It keeps running statistics of the first part, as the first device does.
    """

    def __init__(self, module: nn.Module, parts: int) -> None:
        super().__init__()
        self.module, self.parts = module, parts

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the joined results of the module for the parts of (batch, channels, height, width)."""
        first, *rest = images.chunk(self.parts)
        results = [self.module(first)]
        for part in rest:
            own = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
            results.append(functional_call(self.module, own, (part,)))
        return torch.cat(results)


def split_over_devices(model: nn.Module, trial: Trial, *, by_hand: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network whose batch is split, and facts on which part of it is.

    `model` changes if only its features are split. `by_hand` runs the parts in turn on its device, to compare.
    """
    devices = list(range(trial.devices))
    facts: dict[str, Any] = {"data_parallel": {"of": "the network", "devices": trial.devices}}

    def split(module: nn.Module) -> nn.Module:
        return InParts(module, trial.devices) if by_hand else nn.DataParallel(module, device_ids=devices)

    if not trial.model.startswith(SPLIT_IN_FEATURES):
        return split(model), facts
    model.features = split(model.features)
    facts["data_parallel"]["of"] = "the convolutions (features)"
    return model, facts
