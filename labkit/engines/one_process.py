"""Several GPUs in one process: PyTorch's DataParallel, as its ImageNet example of 2017 had it and the NYU paper ran it.

In each step the first device copies the weights to the others, which get a part of the batch each and give their
gradients back; the first one updates. Of AlexNet and VGG the example splits the convolutions only (`features`): their
fully connected layers hold most weights and little work, and stay on the first device with the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

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
    here = torch.cuda.device_count()
    if here < trial.devices:
        return f"the trial asks for {trial.devices} devices, and there are fewer that it can use ({here})"
    return None


def split_over_devices(model: nn.Module, trial: Trial) -> tuple[nn.Module, dict[str, Any]]:
    """The network whose batch is split, and facts on what of it is. `model` is changed where only its features are."""
    devices = list(range(trial.devices))
    facts: dict[str, Any] = {"data_parallel": {"of": "the network", "devices": trial.devices}}
    if not trial.model.startswith(SPLIT_IN_FEATURES):
        return nn.DataParallel(model, device_ids=devices), facts
    model.features = nn.DataParallel(model.features, device_ids=devices)
    facts["data_parallel"]["of"] = "the convolutions (features)"
    return model, facts
