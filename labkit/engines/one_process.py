"""Several GPUs in one process: PyTorch's DataParallel, as its ImageNet example of 2017 had it and the NYU paper ran it.

In each step the first device copies the weights to the others, which get a part of the batch each and give their
gradients back; the first one updates. Of AlexNet and VGG the example splits the convolutions only (`features`): their
fully connected layers hold most weights and little work, and stay on the first device with the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from labkit.trial import Trial

SPLIT_IN_FEATURES = ("alexnet", "vgg")  # how the names of networks begin


def why_not_in_one_process(trial: Trial) -> str | None:
    """The reason, in a sentence without a full stop; None where the trial can be trained by DataParallel here."""
    if trial.device == "cpu":
        return "DataParallel splits a batch among GPUs; a CPU is one device to it"
    if trial.engine != "eager" or trial.optimizer != "sgd":
        return "DataParallel copies the network in each step, which is driven eagerly and updated by plain SGD"
    if trial.gradient_precision != "fp32":
        return "DataParallel adds gradients up as they are, in FP32"
    if trial.precision == "bf16":
        return "the threads of DataParallel know no autocast but to FP16, whatever the caller's is"
    if (here := torch.cuda.device_count()) < trial.devices:
        return f"the trial asks for {trial.devices} devices, and there are fewer that it can use ({here})"
    return None


class InParts(nn.Module):
    """What DataParallel computes, on one device: the parts of a batch one after the other, and what they give joined.

    Batch norm takes the statistics of each part, and keeps running ones of the first, as the first device does.
    """

    def __init__(self, module: nn.Module, parts: int) -> None:
        super().__init__()
        self.module, self.parts = module, parts

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, channels, height, width) to whatever the module makes of it, the batch first."""
        first, *others = images.chunk(self.parts)
        found = [self.module(first)]
        for part in others:
            own = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
            found.append(functional_call(self.module, own, (part,)))
        return torch.cat(found)


def split_over_devices(model: nn.Module, trial: Trial, *, by_hand: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """The network whose batch is split, and facts on what of it is. `model` is changed where only its features are.

    `by_hand` takes the parts one after the other on the device that the model is on, to compare with.
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
